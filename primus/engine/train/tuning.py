"""`TuningSources`: rows to fine-tune on, opened before the model, and the streams of microbatches it then draws from."""

import logging
import math
from collections.abc import Iterator

from primus.engine.checkpoint.state import TrainState
from primus.engine.config import ConfigContainer, SFTConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.data.loader import Batch
from primus.engine.data.samplers import Sampling, cyclic
from primus.engine.data.sft.batches import Batches, Shape
from primus.engine.data.sft.order import Order, in_turn_of_ranks, round_and_round
from primus.engine.data.sft.packing import pack
from primus.engine.data.sft.rows import Rows
from primus.engine.data.sft.samples import Samples
from primus.engine.data.sft.sources import open_splits
from primus.engine.data.tokenizer import Tokenizer
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.callbacks.evaluation import EvaluationSet
from primus.engine.train.feeds import Feeds
from primus.engine.train.turns import in_turn

__all__ = ["TuningSources"]

log = logging.getLogger(__name__)


class TuningSources:
    """Rows for training, validation and test, as microbatches."""

    def __init__(self, config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer, mesh: Mesh, plan: BatchPlan) -> None:
        """Open the data; InputError if they cannot be read, or are too few for a batch."""
        self._config, self._rows, self._tokenizer, self._mesh, self._plan = config, rows, tokenizer, mesh, plan
        # Rank 0 comes first: what is fetched lies in the cache when the others look.
        splits = in_turn(lambda: open_splits(rows), mesh.world)
        self._whole = config.train.evaluation.full_validation
        evaluates = config.train.evaluation.eval_iters > 0 or self._whole
        self._train = None if config.train.skip_train else self._batches(splits.train, "training")
        self._valid = None if splits.validation is None or not evaluates else self._batches(splits.validation, "validation")
        self._test = None if splits.test is None or not evaluates else self._batches(splits.test, "test")
        self._order = None if self._train is None else self._order_of(self._train)
        if self._order is not None:
            # Too few rows are told here, not at the first iteration.
            log.info("rows: %d samples an epoch", self._order.epoch_samples)

    def feeds(self, state: TrainState) -> Feeds:
        """Return the streams from where a run in this state goes on."""
        validation = [] if self._valid is None else [self._evaluation("validation", self._valid, state.consumed_valid_samples)]
        test = None if self._test is None else self._evaluation("test", self._test, 0)
        return Feeds(train=self._training(state.consumed_train_samples), validation=validation, test=test)

    def _training(self, consumed: int) -> Iterator[Batch]:
        if self._train is None or self._order is None:
            return iter(())
        sampling = self._sampling(self._train)
        if self._rows.order == "cyclic":
            return self._train.stream(cyclic(sampling, consumed, sharding=False))
        return self._train.stream(in_turn_of_ranks(self._order, sampling, consumed))

    def _evaluation(self, name: str, batches: Batches, consumed: int) -> EvaluationSet:
        sampling, plan = self._sampling(batches), self._plan
        if self._whole:
            microbatches, samples = sampling.num_whole, len(batches)
        else:
            microbatches = self._config.train.evaluation.eval_iters * (plan.global_batch_size // plan.unit)
            samples = microbatches * plan.unit
        stream = batches.stream(round_and_round(sampling, consumed, whole=self._whole))
        return EvaluationSet(name=name, batches=stream, num_microbatches=microbatches, samples=samples)

    def _batches(self, rows: Rows, what: str) -> Batches:
        config, packing = self._config, self._rows.packing
        samples = Samples(
            rows,
            self._rows,
            self._tokenizer,
            tokenizer_model=config.tokenizer.model,
            max_length=config.model.seq_length,
        )
        packs = None
        shape = self._shape()
        if packing is not None:
            step = shape.segment_multiple
            lengths = [-(-length // step) * step for length in samples.lengths()]
            packs = pack(lengths, packing, seed=self._rows.seed)
            share = 100 * sum(lengths) / (len(packs) * packing.size)
            log.info("%s: %d samples in %d packs, which they fill to %.1f %%", what, len(lengths), len(packs), share)
        return Batches(samples, packs, shape, self._mesh.device)

    def _shape(self) -> Shape:
        """Return how sequences are filled up: what divides them over ranks divides them, and stages want one length."""
        parallel, packing = self._config.model.parallel, self._rows.packing
        context = 2 * parallel.context_parallel_size if parallel.context_parallel_size > 1 else 1
        sequence = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
        # Stages exchange messages of one length, and experts that gather all tokens want as many of each rank.
        experts = parallel.expert_model_parallel_size > 1 and self._config.model.moe.token_dispatcher == "allgather"
        return Shape(
            seq_length=self._config.model.seq_length,
            multiple=math.lcm(self._rows.pad_multiple, context * sequence),
            segment_multiple=math.lcm(packing.pad_multiple if packing else 1, context),
            is_fixed=self._rows.pad_to_max_length or parallel.pipeline_model_parallel_size > 1 or experts,
            end=self._tokenizer.eod,
        )

    def _order_of(self, batches: Batches) -> Order:
        return Order(total=len(batches), batch=self._plan.global_batch_size, seed=self._rows.seed, kind=self._rows.order)

    def _sampling(self, batches: Batches) -> Sampling:
        dp = self._mesh.dp
        return Sampling(total=len(batches), micro_batch_size=self._plan.micro_batch_size, rank=dp.index, size=dp.size)
