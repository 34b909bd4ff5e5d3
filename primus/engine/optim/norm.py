"""The global gradient norm, clipping by it, and the count of zeros, on flat tensors.

Every logical element counts once, whatever the layout: the flats given here are this rank's share of the elements, and sums
run over the groups that divide the model or its state. A float32 sum of many squares drifts (0.4 % over 58 M elements), so
squares are summed by rows of 4096 and the row norms in float64: 2e-9, at memory speed.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group

__all__ = ["clip_divisor", "count_zeros", "global_norm", "sum_of_squares"]

_ROW = 4096


def global_norm(
    flats: Sequence[Tensor], groups: Iterable[Group], device: torch.device, *, copies: Sequence[Tensor] = ()
) -> float:
    """Return the L2 norm of all elements over all groups; NaN or infinite if an element is.

    `copies` are elements that another rank counts: they add nothing, but one that is not finite makes the norm NaN.
    """
    # Waits for the device: the step decides by this number whether and how far to go.
    return math.sqrt(sum_of_squares(flats, groups, device, copies=copies).item())


def sum_of_squares(
    flats: Sequence[Tensor], groups: Iterable[Group], device: torch.device, *, copies: Sequence[Tensor] = ()
) -> Tensor:
    """Return the square of `global_norm` as a number on the device, fp64."""
    return _summed(_sum_of_squares(flats, device) + 0.0 * _sum_of_squares(copies, device), groups)


def count_zeros(flats: Sequence[Tensor], num_elements: int, groups: Iterable[Group], device: torch.device) -> int:
    """Return how many of the elements over all groups are exactly zero.

    `num_elements` is the number of real elements in `flats`, which may hold zero padding besides.
    """
    non_zeros = torch.zeros((), dtype=torch.float64, device=device)
    for flat in flats:
        non_zeros += torch.count_nonzero(flat)
    return int(_summed(num_elements - non_zeros, groups).item())


def clip_divisor(norm: float, max_norm: float) -> float:
    """Return what gradients of this norm are divided by to bring it down to `max_norm`, at least 1; 0 or less: no clipping."""
    return max((norm + 1e-6) / max_norm, 1.0) if max_norm > 0.0 else 1.0


def _sum_of_squares(flats: Sequence[Tensor], device: torch.device) -> Tensor:
    parts = [part for flat in flats for part in _row_norms(flat)]
    return torch.cat(parts).double().square().sum() if parts else torch.zeros((), dtype=torch.float64, device=device)


def _row_norms(flat: Tensor) -> Iterable[Tensor]:
    dtype = torch.promote_types(flat.dtype, torch.float32)
    whole = flat.numel() // _ROW * _ROW
    if whole:
        yield torch.linalg.vector_norm(flat[:whole].view(-1, _ROW), dim=1, dtype=dtype)
    if whole < flat.numel():
        yield torch.linalg.vector_norm(flat[whole:], dtype=dtype).view(1)


def _summed(value: Tensor, groups: Iterable[Group]) -> Tensor:
    for group in groups:
        all_reduce_(value, group)
    return value
