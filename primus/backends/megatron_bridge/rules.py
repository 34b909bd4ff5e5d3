"""Rules across what a recipe and its user say that Megatron's keys cannot state; `broken` is the name to use."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from primus.backends.megatron_bridge.container import GPTDatasetConfig
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value
from primus.core.keys import show_value
from primus.engine.config import ModelConfig, PEFTConfig
from primus.engine.config.linears import targets

__all__ = ["broken", "broken_targets"]

_SPLITS = ("training", "validation", "test")
_STAGES = {"sft": "fine-tunes on rows", "pretrain": "trains on documents"}


def broken(raw: Raw, stage: Value | None, flavor: str) -> Iterator[str]:
    """Yield what is wrong; `stage` is what the module is said to do, `flavor` the function that made the container."""
    has_rows = not isinstance(raw.config.dataset, GPTDatasetConfig)
    if stage is not None:
        yield from _stage(stage, flavor, has_rows=has_rows)
    if raw.at("dataset.seq_length") not in (None, raw.at("model.seq_length")):
        yield f"{raw.where('dataset.seq_length')} and {raw.where('model.seq_length')} differ: set seq_length, which is both."
    if has_rows:
        yield from _rows(raw)
        yield from _packs(raw)
    else:
        yield from _documents(raw)
    yield from _weight_decay(raw)
    yield from _finite(raw)


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


def _rows(raw: Raw) -> Iterator[str]:
    name, root = "dataset.dataset_name", "dataset.dataset_root"
    if all(raw.is_chosen(path) and raw.at(path) is not None for path in (name, root)):
        yield f"{raw.where(name)} and {raw.where(root)} both say where rows are: keep one of them."
    for path in (name, root):
        if raw.at(path) == "":
            yield f"{raw.where(path)} must name rows; leave it out, or set it to null, for those of the recipe."
    limits: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("seed", lambda seed: seed >= 0, "at least 0"),
        ("max_train_samples", lambda count: count >= 1, "at least 1; null takes all rows"),
        ("val_proportion", lambda share: 0 < share < 1, "above 0 and below 1; do_validation: false sets no rows apart"),
    )
    for field, is_right, right in limits:
        value = raw.at(f"dataset.{field}")
        if value is not None and not is_right(value):
            yield f"{raw.where(f'dataset.{field}')} must be {right}."
    yield from _tools(raw)


def _tools(raw: Raw) -> Iterator[str]:
    given, path = (raw.at("dataset.dataset_kwargs") or {}).get("tool_schemas"), "dataset.dataset_kwargs.tool_schemas"
    if isinstance(given, str) and not isinstance(_json(given), list):
        yield f"{path} {show_value(given)} ({raw.source(path)}) must be a list of schemas, or text that is one in JSON."


def _json(text: str) -> Any:
    """Return what a text says in JSON; None if it says nothing in it."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _packs(raw: Raw) -> Iterator[str]:
    specs, path = raw.at("dataset.packed_sequence_specs"), "dataset.packed_sequence_specs"
    size = raw.config.train.micro_batch_size
    if specs is not None and specs.packed_sequence_size > 0 and size not in (None, 1):
        yield (
            f"packed_sequence true ({raw.source(path)}) goes with micro_batch_size 1, and it is {show_value(size)} "
            f"({raw.source('train.micro_batch_size')}): set micro_batch_size: 1, which gives the same losses."
        )


def _documents(raw: Raw) -> Iterator[str]:
    blends, path = raw.at("dataset.blend_per_split"), "dataset.blend_per_split"
    if blends is not None and len(blends) != len(_SPLITS):
        yield f"{raw.where(path)} must have a list, or null, for each of {', '.join(_SPLITS)}."
    if raw.is_chosen("dataset.random_seed") and raw.at("dataset.random_seed") != raw.at("rng.seed"):
        yield (
            f"{raw.where('dataset.random_seed')} and {raw.where('rng.seed')} differ: one seed draws weights and the order of "
            "documents; set seed alone."
        )


def _finite(raw: Raw) -> Iterator[str]:
    paths = ("rerun_state_machine.check_for_nan_in_loss", "ddp.check_for_nan_in_grad")
    if any(map(raw.is_chosen, paths)) and raw.at(paths[0]) != raw.at(paths[1]):
        yield f"{' and '.join(map(raw.where, paths))} differ, but losses and gradients are looked at together: set both alike."


def _weight_decay(raw: Raw) -> Iterator[str]:
    scheduler, kind = raw.config.scheduler, "scheduler.no_weight_decay_cond_type"
    if raw.at(kind) not in (None, "qwen3_next"):
        yield f"{raw.where(kind)} must be qwen3_next or null."
    start, end = scheduler.start_weight_decay, scheduler.end_weight_decay
    if scheduler.weight_decay_incr_style == "constant" and start != end:
        yield (
            f"{raw.where('scheduler.start_weight_decay')} and {raw.where('scheduler.end_weight_decay')} differ, but "
            f"{raw.where('scheduler.weight_decay_incr_style')}: set one value, or weight_decay_incr_style: linear."
        )
