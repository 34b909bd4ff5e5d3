"""What an adapter holds: A [r, in] and B [out, r], whose product, times alpha / r, is added to a frozen weight [out, in].

Of a weight whose rows are divided over ranks, B has the same rows, and A is whole; of one whose columns are, A has them, and B
is whole. What is whole has a part of its gradient on each rank, and the parts are summed once a step: so no product of an
adapter needs more communication than the linear has (Megatron-Bridge divides A and B both, and gathers between them).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from primus.engine.config.linears import PartRows
from primus.engine.config.peft import InitMethod, PEFTConfig
from primus.engine.kernels.low_rank import fused
from primus.engine.model.parameter import Initial, Place, constant, declare, normal
from primus.engine.parallel.sharding import Sharding, global_shape, sharding_of

__all__ = ["Adapter", "Division", "Factor", "LoRA", "PartsLoRA", "division_of", "initial_rule", "no_values"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """Global sizes of a linear, and how the two matrices of its adapter are divided."""

    inputs: int
    outputs: int
    a: Sharding
    b: Sharding


def division_of(weight: nn.Parameter, place: Place) -> Division:
    """Return what follows from the declaration of the weight of a linear."""
    sharding = sharding_of(weight)
    outputs, inputs = global_shape(weight.shape, sharding, place)
    partial = Sharding(dim=None, sequence_parallel_grad=place.tp.size > 1)
    if sharding.dim is None:
        return Division(inputs=inputs, outputs=outputs, a=sharding, b=sharding)
    if sharding.dim == 0:
        return Division(inputs=inputs, outputs=outputs, a=partial, b=Sharding(dim=0, blocks=sharding.blocks))
    return Division(inputs=inputs, outputs=outputs, a=Sharding(dim=1), b=partial)


class Factor(nn.Module):
    """One matrix, or a stack of them."""

    def __init__(self, place: Place, shape: tuple[int, ...], sharding: Sharding, initial: Initial) -> None:
        super().__init__()
        self.weight = declare(place, shape, sharding, initial)


class Adapter(nn.Module):
    """What adapts one linear."""

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return this rank's A [r, in] and B [out, r]."""
        raise NotImplementedError


class LoRA(Adapter):
    """One pair of matrices; `weight_magnitude` [out], if there is any, is the row norm that DoRA learns."""

    def __init__(self, place: Place, division: Division, peft: PEFTConfig, *, magnitude: Sharding | None = None) -> None:
        super().__init__()
        first, last = initial_rule(peft.lora_A_init_method), initial_rule(peft.lora_B_init_method)
        self.linear_in = Factor(place, (peft.dim, division.inputs), division.a, first)
        self.linear_out = Factor(place, (division.outputs, peft.dim), division.b, last)
        self.has_magnitude = magnitude is not None
        if magnitude is not None:
            # 8 bits of a norm would change the model before it has learned anything.
            wide = torch.promote_types(place.dtype, torch.float32)
            self.weight_magnitude = declare(place, (division.outputs,), magnitude, no_values, dtype=wide)

    def factors(self) -> tuple[Tensor, Tensor]:
        return self.linear_in.weight, self.linear_out.weight


class PartsLoRA(Adapter):
    """A pair of matrices for each part of a fused linear; parts without one stay as they are."""

    def __init__(self, place: Place, division: Division, peft: PEFTConfig, rows: PartRows, parts: Sequence[str]) -> None:
        super().__init__()
        tp = place.tp.size
        # With fewer groups than ranks, rows are cut where no part ends: each rank then has all of B and takes its rows.
        is_cut = rows.divides_groups and rows.groups % tp != 0
        self._own = (place.tp.index, tp) if is_cut else None
        self._groups = rows.groups // tp if rows.divides_groups and not is_cut else rows.groups
        self._widths = {name: width if rows.divides_groups else width // tp for name, width in rows.widths.items()}
        self._parts = tuple(parts)
        b = division.a if is_cut else Sharding(dim=0)
        for part in parts:
            one = replace(division, outputs=rows.groups * rows.widths[part], b=b)
            self.add_module(f"adapter_{part}", LoRA(place, one, peft))

    def factors(self) -> tuple[Tensor, Tensor]:
        """Return those of the whole linear, with zeros where a row has no adapter."""
        pairs = {part: self.get_submodule(f"adapter_{part}").factors() for part in self._parts}  # type: ignore[operator]
        a, b = fused(pairs, self._widths, groups=self._groups)
        return a, b if self._own is None else b.chunk(self._own[1])[self._own[0]]


def initial_rule(method: InitMethod) -> Initial:
    """Return how a whole matrix is filled."""
    match method:
        case "xavier":
            return _xavier_normal
        case "normal":
            return normal(0.2)
        case "kaiming":
            return _kaiming_uniform
        case "zero":
            return constant(0.0)


def no_values(whole: Tensor, generator: torch.Generator) -> None:
    """Leave a tensor that is filled from the weights that it adapts."""


def _xavier_normal(whole: Tensor, generator: torch.Generator) -> None:
    """N(0, 2 / (rows + columns))."""
    whole.normal_(0.0, math.sqrt(2.0 / (whole.shape[0] + whole.shape[1])), generator=generator)


def _kaiming_uniform(whole: Tensor, generator: torch.Generator) -> None:
    """Evenly between +-1 / sqrt(columns), as torch fills linears."""
    bound = 1.0 / math.sqrt(whole.shape[1])
    whole.uniform_(-bound, bound, generator=generator)
