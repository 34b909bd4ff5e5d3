"""What a checkpoint holds against what the run asks for: names, shapes, architecture.

Two kinds of difference, by who lacks the tensor. Megatron's strictness names call what the checkpoint lacks "unexpected" and
what the run has no use for "missing"; messages say which side lacks it instead.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Difference", "architecture_problems", "changes", "difference", "refusal", "remarks", "summary"]

Shape = tuple[int, ...]

_ARCHITECTURE = (
    ("num_layers",),
    ("hidden_size",),
    ("attention", "num_attention_heads"),
    ("attention", "num_query_groups"),
    ("attention", "kv_channels"),
    ("activation",),
    ("attention", "qk_norm"),
    ("normalization",),
    ("layernorm_1p",),
    ("residual_post_layernorm",),
    ("position", "type"),
    ("position", "rotary_percent"),
    ("position", "rotary_interleaved"),
    ("tie_embeddings",),
)
"""Fields of the model that must agree on a full resume: some change the function without changing a shape."""

_NUMERICAL = ("train", "model", "optimizer", "scheduler", "dataset", "tokenizer", "rng", "mixed_precision", "ddp", "peft")
"""Parts of the configuration that bear on the numbers."""

_LAYER = re.compile(r"((?:optimizer\.state\.\w+\.)?decoder\.layers)\.(\d+)\.(.+)")
_SHOWN = 12
_SHOWN_OF_A_LAYER = 5


@dataclass(frozen=True, slots=True)
class Difference:
    """Names and shapes that do not fit."""

    not_stored: tuple[str, ...]
    """The run asks for them, the checkpoint lacks them."""
    not_wanted: tuple[str, ...]
    """The checkpoint holds them, the run has no place for them."""
    unlike: tuple[str, ...]
    """Sentences about tensors whose shapes differ."""


def difference(wanted: Mapping[str, Shape], stored: Mapping[str, Shape], *, with_optimizer: bool) -> Difference:
    """Compare what all ranks ask for with what is stored; optimizer state that nobody asks for is no difference."""
    unlike = [
        f"{name} has shape {list(stored[name])} in the checkpoint and {list(shape)} in the run"
        for name, shape in wanted.items()
        if name in stored and stored[name] != shape
    ]
    left = [name for name in stored if name not in wanted and (with_optimizer or not name.startswith("optimizer."))]
    return Difference(tuple(n for n in wanted if n not in stored), tuple(left), tuple(unlike))


def architecture_problems(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each field of the model in which a checkpoint and the run differ."""
    pairs = [("position_embedding_type" if path == ("position", "type") else path[-1], path) for path in _ARCHITECTURE]
    return [
        f"{name}: the checkpoint was saved with {_at(saved, path)}, the run says {_at(ours, path)}"
        for name, path in pairs
        if _at(saved, path) != _at(ours, path)
    ]


def changes(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return `path: before -> now` of each setting that bears on the numbers and has changed since a checkpoint."""
    before, now = ({part: side[part] for part in _NUMERICAL if part in side} for side in (saved, ours))
    return list(_changed(before, now, ""))


def summary(names: Sequence[str]) -> str:
    """List tensors briefly: those of a layer are one entry, and layers with the same ones too."""
    layers: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = _LAYER.fullmatch(name)
        place, part = ((match[1], match[2]), match[3]) if match else ((name, ""), "")
        layers.setdefault(place, []).append(part)
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (stem, number), parts in layers.items():
        alike.setdefault((stem, tuple(parts)), []).append(number)
    entries = [_entry(stem, numbers, parts) for (stem, parts), numbers in alike.items()]
    return _first(entries, _SHOWN)


def _entry(stem: str, numbers: Sequence[str], parts: Sequence[str]) -> str:
    if not numbers[0]:
        return stem
    if len(numbers) == len(parts) == 1:
        return f"{stem}.{numbers[0]}.{parts[0]}"
    is_row = len(numbers) > 2 and int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1
    layers = f"{numbers[0]}-{numbers[-1]}" if is_row else "|".join(numbers)
    return f"{stem}.{layers}.* ({len(parts) * len(numbers)} tensors: {_first(parts, _SHOWN_OF_A_LAYER)})"


def _first(words: Sequence[str], count: int) -> str:
    rest = len(words) - count
    return ", ".join(words[:count]) + (f" and {rest} more" if rest > 0 else "")


def refusal(folder: Path, found: Difference, strictness: str | None) -> list[str]:
    """Return why `dist_ckpt_strictness` forbids loading, [] if it does not; None: all must fit, whatever it says.

    With `assume_ok_unexpected` nothing is compared beforehand, and reading what is not there fails all the same.
    """
    problems = list(found.unlike)
    if found.not_stored and strictness in (None, "assume_ok_unexpected", "raise_unexpected", "raise_all"):
        problems.append(f"not in the checkpoint {folder}: {summary(found.not_stored)}")
    if found.not_wanted and strictness in (None, "raise_all"):
        problems.append(f"in the checkpoint {folder} and not in the run: {summary(found.not_wanted)}")
    if len(problems) > len(found.unlike) and strictness is not None:
        problems.append(f"dist_ckpt_strictness is {strictness}; log_all would name these and go on with the rest")
    return problems


def remarks(found: Difference, strictness: str) -> list[str]:
    """Return what `dist_ckpt_strictness` wants to be said about a load that goes on: a run returns to nobody but its log."""
    lines = []
    if found.not_stored and strictness in ("log_unexpected", "log_all", "return_unexpected", "return_all"):
        lines.append(f"NOT restored, not in the checkpoint: {summary(found.not_stored)}")
    # Also where nothing is compared: weights that are laid aside are a surprise.
    if found.not_wanted and strictness in ("assume_ok_unexpected", "log_all", "return_all"):
        lines.append(f"NOT used, in the checkpoint only: {summary(found.not_wanted)}")
    return lines


def _changed(saved: Mapping[str, Any], ours: Mapping[str, Any], path: str) -> Iterator[str]:
    """Compare what both know; a map that took the place of nothing, or gave way to it, is told as what it sets."""
    for name, now in ours.items():
        before = saved.get(name, now)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _changed(before, now, f"{path}{name}.")
        elif before != now:
            yield f"{path}{name}: {_set(before)} -> {_set(now)}"


def _set(value: Any) -> Any:
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, Mapping) else value


def _at(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name, {})
    return values
