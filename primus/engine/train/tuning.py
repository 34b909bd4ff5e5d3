"""`TuningSources`: rows to fine-tune on, opened before the model, and the streams of microbatches it then draws from."""

import logging
from collections.abc import Iterator
from functools import partial

from primus.engine.checkpoint.state import TrainState
from primus.engine.config import ConfigContainer, SFTConfig
from primus.engine.config.batch import BatchPlan
from primus.engine.data.loader import Batch
from primus.engine.data.samplers import Sampling, cyclic
from primus.engine.data.sft.batches import Batches
from primus.engine.data.sft.opening import Opened, Opener
from primus.engine.data.sft.order import Order, in_turn_of_ranks, round_and_round
from primus.engine.data.sft.own_packs import open_packs
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
        self._config, self._rows, self._mesh, self._plan = config, rows, mesh, plan
        self._opener = Opener.of(config, rows, tokenizer)
        self._whole = config.train.evaluation.full_validation
        # Rank 0 comes first: what it fetches and tokenises lies on disk when the others look.
        opened = in_turn(self._opened, mesh.world)
        self._train, self._valid, self._test = (None if one is None else self._batches(one) for one in opened)
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
            return self._train.stream(partial(cyclic, sampling, consumed, sharding=False))
        return self._train.stream(partial(in_turn_of_ranks, self._order, sampling, consumed))

    def _evaluation(self, name: str, batches: Batches, consumed: int) -> EvaluationSet:
        sampling, plan = self._sampling(batches), self._plan
        if self._whole:
            microbatches, samples = sampling.num_whole, len(batches)
        else:
            microbatches = self._config.train.evaluation.eval_iters * (plan.global_batch_size // plan.unit)
            samples = microbatches * plan.unit
        stream = batches.stream(partial(round_and_round, sampling, consumed, whole=self._whole))
        return EvaluationSet(name=name, batches=stream, num_microbatches=microbatches, samples=samples)

    def _opened(self) -> tuple[Opened | None, Opened | None, Opened | None]:
        """Open what training, validation and test need."""
        trains = not self._config.train.skip_train
        evaluates = self._config.train.evaluation.eval_iters > 0 or self._whole
        packing, opener = self._rows.packing, self._opener
        if packing is not None and packing.train_file is not None:
            train, valid = packing.train_file, packing.validation_file if self._rows.do_validation and evaluates else None
            keys = [f"dataset.packed_sequence_specs.packed_{name}_data_path" for name in ("train", "val")]
            return (
                open_packs(opener, train, keys[0], "training") if trains else None,
                None if valid is None else open_packs(opener, valid, keys[1], "validation"),
                None,
            )
        splits = open_splits(self._rows)
        return (
            opener.open(splits.train, "training", learns=True) if trains else None,
            opener.open(splits.validation, "validation") if splits.validation is not None and evaluates else None,
            opener.open(splits.test, "test") if splits.test is not None and evaluates else None,
        )

    def _batches(self, opened: Opened) -> Batches:
        workers = self._config.dataset.num_workers
        return Batches(opened.samples, opened.packs, self._opener.shape, self._mesh.device, num_workers=workers)

    def _order_of(self, batches: Batches) -> Order:
        return Order(total=len(batches), batch=self._plan.global_batch_size, seed=self._rows.seed, kind=self._rows.order)

    def _sampling(self, batches: Batches) -> Sampling:
        dp = self._mesh.dp
        return Sampling(total=len(batches), micro_batch_size=self._plan.micro_batch_size, rank=dp.index, size=dp.size)
