"""`Sources`: the data of a run, opened before its model; `Feeds`: the streams of microbatches it then draws from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from primus.engine.checkpoint.state import TrainState
from primus.engine.config import ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.data.datasets import Dataset, Datasets, build_datasets
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.loader import Batch, Loader
from primus.engine.data.samplers import Sampling
from primus.engine.data.splits import split_sizes
from primus.engine.data.tokenizer import Tokenizer
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.callbacks.evaluation import EvaluationSet
from primus.engine.train.turns import in_turn

__all__ = ["Feeds", "Sources"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feeds:
    """Where batches come from; positions follow the state's counters."""

    train: Iterator[Batch]
    validation: Sequence[EvaluationSet]
    test: EvaluationSet | None


class Sources:
    """Training, validation and test sets of documents with their loaders."""

    def __init__(self, config: ConfigContainer, tokenizer: Tokenizer, mesh: Mesh, plan: BatchPlan) -> None:
        """Open the data; InputError if a split is asked for samples it does not have."""
        # Rank 0 builds the index caches; a rank that does not see its files builds its own.
        datasets = in_turn(lambda: _datasets(config, tokenizer), mesh.world)
        self._config, self._mesh, self._plan = config, mesh, plan
        self._whole = config.train.evaluation.full_validation
        self._train = None if datasets.train is None else self._loader(datasets.train)
        self._valid = [(dataset, self._loader(dataset, in_order=self._whole)) for dataset in datasets.valid]
        self._test = None if datasets.test is None else (datasets.test, self._loader(datasets.test))

    def feeds(self, state: TrainState) -> Feeds:
        """Return the streams from where a run in this state goes on."""
        names = [f"validation_{number}" for number in range(len(self._valid))] if len(self._valid) > 1 else ["validation"]
        validation = [
            self._evaluation(name, *source, consumed=state.consumed_valid_samples, whole=self._whole)
            for name, source in zip(names, self._valid, strict=False)
        ]
        test = None if self._test is None else self._evaluation("test", *self._test, consumed=0, whole=False)
        train = iter(()) if self._train is None else self._train.batches(state.consumed_train_samples)
        return Feeds(train=train, validation=validation, test=test)

    def _evaluation(self, name: str, dataset: Dataset, loader: Loader, *, consumed: int, whole: bool) -> EvaluationSet:
        if whole:
            microbatches, samples = self._sampling(dataset).num_whole, len(dataset)
        else:
            microbatches = self._config.train.evaluation.eval_iters * (self._plan.global_batch_size // self._plan.unit)
            samples = microbatches * self._plan.unit
        return EvaluationSet(name=name, batches=loader.batches(consumed), num_microbatches=microbatches, samples=samples)

    def _loader(self, dataset: Dataset, *, in_order: bool = False) -> Loader:
        sampling, device = self._sampling(dataset), self._mesh.device
        return Loader(dataset, self._config.dataset, sampling=sampling, device=device, in_order=in_order)

    def _sampling(self, dataset: Dataset) -> Sampling:
        dp = self._mesh.dp
        return Sampling(total=len(dataset), micro_batch_size=self._plan.micro_batch_size, rank=dp.index, size=dp.size)


def _datasets(config: ConfigContainer, tokenizer: Tokenizer) -> Datasets:
    train, data = config.train, config.dataset
    rules = SampleRules(
        seq_length=config.model.seq_length,
        seed=config.rng.seed,
        eod=tokenizer.eod,
        eod_mask_loss=data.eod_mask_loss,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        with_attention_mask=data.create_attention_mask_in_dataloader,
    )
    return build_datasets(
        data,
        rules=rules,
        vocab_size=tokenizer.vocab_size,
        sizes=split_sizes(config.train),
        multiple_validation_sets=train.evaluation.multiple_validation_sets,
    )
