"""How the heads of a layer come to know where they stand: by rotation, or not at all.

All forms take query heads [S, B, ..., D], key heads [S, B, ..., D], the tables of the rotation, the place of the first token
in its sequence, and the samples of which that consists, if there are several; S are this rank's positions.
"""

from typing import Protocol

import torch
from torch import Tensor

from primus.engine.kernels.segments import Segments
from primus.engine.model.rotary import RotaryTables, rotate
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Group

__all__ = ["Positioned", "Rotated", "Unrotated"]


class Positioned(Protocol):
    """What a layer does to query and key heads before they meet."""

    def __call__(
        self, query: Tensor, key: Tensor, tables: RotaryTables | None, first: int, packed: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return both."""


class Rotated:
    """Queries and keys are turned by the tables, if there are any."""

    def __init__(self, *, interleaved: bool) -> None:
        self.interleaved = interleaved

    def __call__(
        self, query: Tensor, key: Tensor, tables: RotaryTables | None, first: int, packed: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        return rotate(query, tables, interleaved=self.interleaved), rotate(key, tables, interleaved=self.interleaved)


class Unrotated:
    """Nothing turns; queries far from the start may be larger, so that attention over many keys stays sharp.

    The query at position p is multiplied by 1 + scale ln(1 + floor((p + 1) / floor)) (arXiv 2501.19399, in Llama 4's form).
    """

    def __init__(self, cp: Group, *, scale: float, floor: int) -> None:
        self.cp, self.scale, self.floor = cp, scale, floor

    def __call__(
        self, query: Tensor, key: Tensor, tables: RotaryTables | None, first: int, packed: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        return (query if self.scale == 0.0 else query * self._factors(query, first, packed)), key

    def _factors(self, query: Tensor, first: int, packed: Segments | None) -> Tensor:
        stop = first + len(query) * self.cp.size
        wide = torch.promote_types(query.dtype, torch.float32)
        rows = torch.arange(first, stop, device=query.device) if packed is None else packed.position[first:stop]
        factors = 1.0 + self.scale * torch.log1p(((rows + 1) // self.floor).to(wide))
        own = own_slice(factors, self.cp.size, self.cp.index, 0).to(query.dtype)
        return own.view(-1, *[1] * (query.ndim - 1))
