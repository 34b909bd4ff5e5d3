"""Evaluation: what `train` says of it, and the sub-config `validation` of Megatron-Bridge's later containers."""

from collections.abc import Iterator

from primus.backends.megatron_bridge.container import GPTDatasetConfig
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value

__all__ = ["validation_values"]

_PART = "validation"
_SHARED = ("eval_iters", "eval_interval", "skip_train")
"""Fields that `train` has too."""
_SWITCHES = ("full_validation", "multiple_validation_sets", "test_mode")
_BATCHES = {"eval_global_batch_size": "global_batch_size", "eval_micro_batch_size": "micro_batch_size"}
_NOT_BUILT = ("start_eval_at_iter", "validation_set_names")


def validation_values(raw: Raw, problems: list[str]) -> dict[str, Value]:
    """Return the flat values; what the user says in both places must be the same."""
    values = {name: raw.value(raw.at(f"train.{name}"), f"train.{name}") for name in _SHARED}
    part = raw.config.validation
    if part is None:
        return values
    for name in _SHARED:
        path, twin = f"{_PART}.{name}", f"train.{name}"
        is_said = raw.at(path) is not None and (raw.is_chosen(path) or not raw.is_chosen(twin))
        if raw.is_chosen(path) and raw.is_chosen(twin) and raw.at(path) != raw.at(twin):
            problems.append(
                f"{raw.where(path)} and {raw.where(twin)} are two names of one thing, and differ: keep one of them."
            )
        if is_said:
            values[name] = raw.value(raw.at(path), path)
    for name in _SWITCHES:
        if getattr(part, name):
            values[name] = raw.value(True, f"{_PART}.{name}")
    problems += _problems(raw)
    return values


def _problems(raw: Raw) -> Iterator[str]:
    for name, twin in _BATCHES.items():
        if raw.at(f"{_PART}.{name}") not in (None, raw.at(f"train.{twin}")):
            yield f"{raw.where(f'{_PART}.{name}')} must be {twin}, or null: evaluation takes the batches of training."
    for name in _NOT_BUILT:
        if raw.at(f"{_PART}.{name}"):
            yield f"{raw.where(f'{_PART}.{name}')} is not implemented yet; leave it out."
    if raw.at(f"{_PART}.multiple_validation_sets") and not isinstance(raw.config.dataset, GPTDatasetConfig):
        yield f"{raw.where(f'{_PART}.multiple_validation_sets')} is of documents: rows have one validation set."
