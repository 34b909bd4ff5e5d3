"""How a part declares its parameters: global shape, sharding and first values, stated once beside each other.

`Place` says where the parts of a model live. A declared parameter holds this rank's slice and carries its `sharding`
(read by initialisation, gradient buffers, optimizer and checkpoint) and its `initial` rule (read by `initialise`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from primus.engine.parallel.lanes import Lanes
from primus.engine.parallel.mesh import Group, Part
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Sharding, local_shape

__all__ = ["Initial", "Place", "constant", "declare", "initial_of", "normal", "xavier_uniform"]

Initial = Callable[[Tensor, torch.Generator], None]
"""Fills a whole, undivided fp32 tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Group, memory and random streams that the parts of one model share."""

    tp: Group
    cp: Group
    cp_exchange: Group
    cp_ring: Group
    dp: Group
    ep: Part
    etp: Part
    etp_ep: Group
    lanes: Lanes
    dtype: torch.dtype
    device: torch.device
    weights_device: torch.device
    """Where parameters lie: `device`, or meta until flat memory holds them."""
    streams: RandomStreams
    sequence_parallel: bool
    """Between the linears, activations hold this rank's slice of the sequence."""

    @property
    def residual_stream(self) -> str | None:
        """Stream of dropout on the residual stream: the rank's own where ranks hold other tokens, else the common one."""
        return "model-parallel" if self.sequence_parallel else None


def declare(
    place: Place, shape: tuple[int, ...], sharding: Sharding, initial: Initial, *, dtype: torch.dtype | None = None
) -> nn.Parameter:
    """Return an unfilled parameter: this rank's slice of a tensor of the global `shape`, in the model's dtype unless said."""
    local = local_shape(shape, sharding, place)
    parameter = nn.Parameter(torch.empty(local, dtype=dtype or place.dtype, device=place.weights_device))
    parameter.sharding = sharding  # type: ignore[attr-defined]
    parameter.initial = initial  # type: ignore[attr-defined]
    return parameter


def initial_of(parameter: nn.Parameter) -> Initial:
    """Return the first values that the parameter was declared with."""
    initial: Initial = parameter.initial  # type: ignore[attr-defined]
    return initial


def normal(std: float) -> Initial:
    """Draw from N(0, std^2)."""

    def fill(whole: Tensor, generator: torch.Generator) -> None:
        whole.normal_(0.0, std, generator=generator)

    return fill


def xavier_uniform() -> Initial:
    """Draw uniformly between +-sqrt(6 / (rows + columns))."""

    def fill(whole: Tensor, generator: torch.Generator) -> None:
        nn.init.xavier_uniform_(whole, generator=generator)

    return fill


def constant(value: float) -> Initial:
    """Fill with one number."""

    def fill(whole: Tensor, generator: torch.Generator) -> None:
        whole.fill_(value)

    return fill
