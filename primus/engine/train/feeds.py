"""`build_feeds`: the streams of microbatches a run draws from: training, validation sets, test."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from primus.engine.checkpoint.state import TrainState
from primus.engine.config import ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.data.datasets import Dataset, Datasets, build_datasets
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.loader import Batch, build_loader
from primus.engine.data.samplers import Sampling
from primus.engine.data.splits import split_sizes
from primus.engine.data.tokenizer import Tokenizer
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.callbacks.evaluation import EvaluationSet
from primus.errors import InputError

__all__ = ["Feeds", "build_feeds"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Feeds:
    """Where batches come from; positions follow the state's counters."""

    train: Iterator[Batch]
    validation: Sequence[EvaluationSet]
    test: EvaluationSet | None


def build_feeds(config: ConfigContainer, tokenizer: Tokenizer, mesh: Mesh, plan: BatchPlan, state: TrainState) -> Feeds:
    """Open the data of a run; InputError if a split is asked for samples it does not have."""
    datasets = _in_turn(lambda: _datasets(config, tokenizer, plan), mesh)
    streams = _Streams(config, mesh, plan)
    evaluation = config.train.evaluation
    several = len(datasets.valid) > 1
    validation = [
        streams.evaluation(
            f"validation_{number}" if several else "validation",
            dataset,
            consumed=state.consumed_valid_samples,
            whole=evaluation.full_validation,
        )
        for number, dataset in enumerate(datasets.valid)
    ]
    test = None if datasets.test is None else streams.evaluation("test", datasets.test, consumed=0, whole=False)
    train = iter(()) if datasets.train is None else streams.training(datasets.train, state.consumed_train_samples)
    return Feeds(train=train, validation=validation, test=test)


def _in_turn(build: Callable[[], Datasets], mesh: Mesh) -> Datasets:
    """Let rank 0 build the index caches first; a rank that does not see its files builds its own."""
    built = build() if mesh.rank == 0 else None
    all_gather_object(None, mesh.world)
    return build() if built is None else built


def _datasets(config: ConfigContainer, tokenizer: Tokenizer, plan: BatchPlan) -> Datasets:
    train, data = config.train, config.dataset
    sizes = split_sizes(
        train_samples=train.train_samples or plan.samples_of(train.train_iters),
        train_iters=train.train_iters,
        batch=train.global_batch_size,
        eval_iters=train.evaluation.eval_iters,
        eval_interval=train.evaluation.eval_interval,
        full_validation=train.evaluation.full_validation,
        skip_train=train.skip_train,
    )
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
        sizes=sizes,
        multiple_validation_sets=train.evaluation.multiple_validation_sets,
    )


@dataclass(frozen=True, slots=True)
class _Streams:
    config: ConfigContainer
    mesh: Mesh
    plan: BatchPlan

    def training(self, dataset: Dataset, consumed: int) -> Iterator[Batch]:
        return self._loader(dataset, consumed)

    def evaluation(self, name: str, dataset: Dataset, *, consumed: int, whole: bool) -> EvaluationSet:
        unit = self.plan.unit
        if whole:
            microbatches = len(dataset) // unit
            if microbatches == 0:
                raise InputError(
                    f"full_validation: the {name} set has {len(dataset)} samples, less than one microbatch of {unit} over all "
                    "ranks; give it a larger share or use a smaller micro_batch_size"
                )
            batches = self._loader(dataset, 0, in_order=True)
        else:
            microbatches = self.config.train.evaluation.eval_iters * (self.plan.global_batch_size // unit)
            batches = self._loader(dataset, consumed)
        return EvaluationSet(name=name, batches=batches, num_microbatches=microbatches, samples=microbatches * unit)

    def _loader(self, dataset: Dataset, consumed: int, *, in_order: bool = False) -> Iterator[Batch]:
        sampling = Sampling(
            total=len(dataset),
            consumed=consumed,
            micro_batch_size=self.plan.micro_batch_size,
            rank=self.mesh.dp.index,
            size=self.mesh.dp.size,
        )
        return build_loader(dataset, self.config.dataset, sampling=sampling, device=self.mesh.device, in_order=in_order)
