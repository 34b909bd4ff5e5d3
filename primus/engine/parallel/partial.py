"""`PartialGradients`: gradients of weights that all tensor-parallel ranks hold, while each sees its slice of the sequence."""

from collections.abc import Iterable

import torch

from primus.engine.parallel.buckets import OwnedRange
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import sharding_of

__all__ = ["PartialGradients"]


class PartialGradients:
    """Parts of sums over the tensor-parallel ranks."""

    def __init__(self, ranges: Iterable[OwnedRange], tp: Group) -> None:
        """Find them in what a rank owns, which its neighbours in `tp` own too."""
        self._tp = tp
        self._parts = [
            owned.grad[segment.start : segment.start + segment.numel]
            for owned in ranges
            for segment in owned.segments
            if tp.size > 1 and sharding_of(segment.param).sequence_parallel_grad
        ]

    def sum_(self) -> None:
        """Add them up, in one collective."""
        if self._parts:
            flat = all_reduce_(torch.cat(self._parts), self._tp)
            for part, total in zip(self._parts, flat.split([p.numel() for p in self._parts]), strict=True):
                part.copy_(total)
