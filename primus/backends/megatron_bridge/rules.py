"""Rules across what a recipe and its user say that Megatron's keys cannot state; `broken` is the name to use."""

from collections.abc import Iterator

from primus.backends.megatron_bridge.container import GPTDatasetConfig
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value
from primus.core.keys import show_value
from primus.engine.config import ModelConfig, PEFTConfig
from primus.engine.config.linears import targets

__all__ = ["broken", "broken_targets"]

_STAGES = {"sft": "fine-tunes on rows", "pretrain": "trains on documents"}


def broken(raw: Raw, stage: Value | None, flavor: str) -> Iterator[str]:
    """Yield what is wrong; `stage` is what the module is said to do, `flavor` the function that made the container."""
    has_rows = not isinstance(raw.config.dataset, GPTDatasetConfig)
    if stage is not None:
        yield from _stage(stage, flavor, has_rows=has_rows)
    if has_rows:
        yield from _packs(raw)
    yield from _weight_decay(raw)


def broken_targets(raw: Raw, peft: PEFTConfig, model: ModelConfig) -> list[str]:
    """Return what adapters are asked for that the model does not have."""
    return [f"{problem} ({raw.source('peft.target_modules', 'peft')})" for problem in targets(peft, model).problems]


def _stage(stage: Value, flavor: str, *, has_rows: bool) -> Iterator[str]:
    said, meant = str(stage.value), "sft" if has_rows else "pretrain"
    if said in _STAGES and said != meant:
        yield (
            f"stage {said} ({stage.source}) {_STAGES[said]}, but flavor {flavor} {_STAGES[meant]}: choose config: "
            f"{meant}_trainer.yaml, or a flavor that does so."
        )


def _packs(raw: Raw) -> Iterator[str]:
    specs, path = raw.at("dataset.packed_sequence_specs"), "dataset.packed_sequence_specs"
    size = raw.config.train.micro_batch_size
    if specs is not None and specs.packed_sequence_size > 0 and size not in (None, 1):
        yield (
            f"packed_sequence true ({raw.source(path)}) goes with micro_batch_size 1, and it is {show_value(size)} "
            f"({raw.source('train.micro_batch_size')}): set micro_batch_size: 1, which gives the same losses."
        )


def _weight_decay(raw: Raw) -> Iterator[str]:
    scheduler = raw.config.scheduler
    start, end = scheduler.start_weight_decay, scheduler.end_weight_decay
    if scheduler.weight_decay_incr_style == "constant" and start != end:
        yield (
            f"{raw.where('scheduler.start_weight_decay')} and {raw.where('scheduler.end_weight_decay')} differ, but "
            f"{raw.where('scheduler.weight_decay_incr_style')}: set one value, or weight_decay_incr_style: linear."
        )
