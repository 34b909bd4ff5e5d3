"""Dropout of rows by what they are: whoever has a row, or some of its columns, drops the same of it.

A row is known by a number. What it loses is drawn from that number and a column's place alone, so the rank that works on it,
the order of rows and how often they are computed change nothing.
"""

import torch
from torch import Tensor

from primus.engine.kernels.split_mix import STEP, is_kept, mixed

__all__ = ["dropped", "kept"]

_AT_ONCE = 1 << 22
"""Numbers of 8 bytes that are drawn before they become a byte each."""


def dropped(x_MW: Tensor, kept_MW: Tensor, probability: float) -> Tensor:
    """Return what is left of x, times 1 / (1 - probability), as new memory."""
    return (x_MW * kept_MW).mul_(1.0 / (1.0 - probability))


def kept(numbers_M: Tensor, columns_W: Tensor, probability: float) -> Tensor:
    """Return what is not dropped, [M, W], bool; numbers and places of columns are int64."""
    result = torch.empty(len(numbers_M), len(columns_W), dtype=torch.bool, device=numbers_M.device)
    states_W = (columns_W + 1) * STEP
    rows = max(1, _AT_ONCE // len(columns_W))
    for numbers, part in zip(numbers_M.split(rows), result.split(rows), strict=True):
        part.copy_(is_kept(mixed(numbers.unsqueeze(-1) + states_W), probability))
    return result
