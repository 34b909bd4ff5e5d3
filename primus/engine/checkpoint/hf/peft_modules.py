"""What the peft library adapts of a model, by our linears, and how its factors are those of ours.

It adapts modules (`target_modules`), and of experts, whose matrices transformers stacks, parameters (`target_parameters`):
A [E r, in] has the rows of one expert after those of the other, and the columns of B [out, r E] go round the experts. Where a
model has experts, it takes `gate_proj`, `up_proj` and `down_proj` among target modules for the stacks, and those of other
linears are adapted as parameters, too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from primus.engine.checkpoint.hf.forms import runs
from primus.engine.checkpoint.hf.names import Form, Row
from primus.engine.config.linears import PARTS
from primus.engine.config.model import ModelConfig

__all__ = ["Target", "dealt", "flat_stacks", "form_of", "fused", "held_in", "part_names", "rank_of", "stacks", "targets_of"]

_STACKED = {"linear_fc1": "gate_up_proj", "linear_fc2": "down_proj"}
"""Their stacks of experts' matrices, alike in all families."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one pair of factors of theirs adapts."""

    name: str
    """What a configuration calls it."""
    module: str
    """What stands before the names of its factors."""
    is_parameter: bool

    @property
    def is_stack(self) -> bool:
        """It is of all experts of a layer."""
        return self.is_parameter and self.name.rpartition(".")[2] in _STACKED.values()

    @property
    def end(self) -> str:
        """What its name has in common with those of its kind in other layers."""
        return ".".join(self.name.split(".")[3:]) if self.is_parameter else self.name.rpartition(".")[2]


def targets_of(linear: str, row: Row, model: ModelConfig, *, wraps_both: bool = False) -> list[Target]:
    """Return theirs for one of our linears, one for each of its parts.

    With `wraps_both` both stacks of the experts have adapters: one wrapper is in the other then.
    """
    last = linear.rpartition(".")[2]
    if row.is_of_experts:
        layer = ".".join(row.theirs[0].split(".")[:3])
        stem = f"{layer}.mlp.experts"
        inner = ".base_layer" if wraps_both and last == "linear_fc1" else ""
        return [Target(f"{stem}.{_STACKED[last]}", f"{stem}{inner}", is_parameter=True)]
    is_parameter = bool(model.moe.layers) and last in _STACKED
    modules = [name.removesuffix(".weight") for name in row.theirs]
    return [Target(f"{module}.weight" if is_parameter else module, module, is_parameter) for module in modules]


def part_names(linear: str, row: Row) -> Sequence[str]:
    """Return the names of the parts that a linear is for them; one without a name is all of it."""
    return ("",) if row.is_of_experts else PARTS.get(linear.rpartition(".")[2], ("",))


def form_of(row: Row) -> Form:
    """Return how our rows are those of what they adapt: their stacks of experts have gate and up in one tensor."""
    return "same" if row.is_of_experts and not row.is_stack else row.form


def held_in(config: Mapping[str, Any], linear: str, row: Row, model: ModelConfig) -> list[Target]:
    """Return what a configuration of theirs may adapt of one of our linears: stacks must be named, and modules have factors."""
    if not row.is_of_experts:
        return targets_of(linear, row, model)
    stem = linear.rpartition(".")[0]
    both = [targets_of(f"{stem}.{last}", row, model)[0].name for last in _STACKED]
    wraps_both = all(_is_targeted(name, config) for name in both)
    return [each for each in targets_of(linear, row, model, wraps_both=wraps_both) if _is_targeted(each.name, config)]


def _is_targeted(name: str, config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration of theirs names a parameter, by its end or whole."""
    return any(name == each or name.endswith(f".{each}") for each in config.get("target_parameters") or ())


def rank_of(name: str, config: Mapping[str, Any]) -> int:
    """Return the rank that a configuration of theirs gives what it adapts."""
    patterns: Mapping[str, int] = config.get("rank_pattern") or {}
    found = (rank for pattern, rank in patterns.items() if re.match(rf"(.*\.)?({pattern})$", name))
    return next(found, int(config["r"]))


def flat_stacks(a: Tensor, b: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return A and B as they have them for [E, r, in] and [E, out, r], or for one pair [r, in] and [out, r] that all share."""
    a, b = (each if each.dim() == 3 else each.expand(experts, *each.shape) for each in (a, b))
    return a.flatten(0, 1).contiguous(), b.permute(1, 2, 0).flatten(1).contiguous()


def stacks(a: Tensor, b: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Undo `flat_stacks`, without a guess whether all share one pair."""
    return a.unflatten(0, (experts, -1)), b.unflatten(1, (-1, experts)).permute(2, 0, 1).contiguous()


def dealt(value: Tensor, part: int, form: Form, model: ModelConfig) -> Tensor:
    """Return the rows of one of their tensors."""
    own = [run for run in runs(form, len(value), model) if run.part == part]
    result = value.new_empty(sum(run.length for run in own), *value.shape[1:])
    for run in own:
        result[run.their_slice(run.ours, run.ours + run.length)] = value[run.ours : run.ours + run.length]
    return result


def fused(parts: Iterable[Tensor], form: Form, model: ModelConfig) -> Tensor:
    """Return the rows of theirs in our order."""
    theirs = list(parts)
    rows = sum(map(len, theirs))
    result = theirs[0].new_empty(rows, *theirs[0].shape[1:])
    for run in runs(form, rows, model):
        result[run.ours : run.ours + run.length] = theirs[run.part][run.their_slice(run.ours, run.ours + run.length)]
    return result
