"""How a sequence is divided over context-parallel ranks so that causal attention costs all of them the same.

It is cut into 2c equal pieces, and rank i holds the pieces i and 2c-1-i: an early one that attends to little and a late one
that attends to much (Striped Attention, arXiv 2311.09431, in its zigzag form).
"""

from functools import cache

import torch
from torch import Tensor

__all__ = ["from_rank_order", "own_slice", "positions", "to_rank_order"]


@cache
def positions(length: int, size: int, index: int) -> Tensor:
    """Return the ascending positions in a whole sequence of `length` that rank `index` of `size` holds, int64."""
    piece = length // (2 * size)
    assert piece * 2 * size == length, f"a sequence of {length} cannot be cut into {2 * size} equal pieces"
    return torch.cat([torch.arange(p * piece, (p + 1) * piece) for p in (index, 2 * size - 1 - index)])


def own_slice(x: Tensor, size: int, index: int, dim: int) -> Tensor:
    """Return the positions that a rank holds along `dim` of a whole tensor."""
    return x if size == 1 else x.index_select(dim, positions(x.shape[dim], size, index).to(x.device))


def from_rank_order(x: Tensor, size: int) -> Tensor:
    """Put dim 0, the ranks' parts one after the other, into the order of the sequence."""
    return x.index_select(0, _ranks_to_sequence(len(x), size).to(x.device))


def to_rank_order(x: Tensor, size: int) -> Tensor:
    """Undo `from_rank_order`."""
    return x.index_select(0, _sequence_to_ranks(len(x), size).to(x.device))


@cache
def _sequence_to_ranks(length: int, size: int) -> Tensor:
    return torch.cat([positions(length, size, index) for index in range(size)])


@cache
def _ranks_to_sequence(length: int, size: int) -> Tensor:
    return _sequence_to_ranks(length, size).argsort()
