"""The flat memory an optimizer works on: the ranges of the gradient buffers that this rank updates, with their state.

A `FlatRange` is contiguous: weights, gradients, main weights and state tensors are parallel 1-D tensors, and its `Piece`s say
which parameter lies where. `stretches` merges neighbours that are treated alike, the zero padding between them included, so
that a whole model is a handful of long tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from primus.engine.optim.grouping import UpdateGroup
from primus.engine.parallel.sharding import Sharding
from primus.engine.precision import main_dtype

__all__ = ["FlatRange", "Piece"]

K = TypeVar("K")


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """The part of a parameter that lies in a range."""

    name: str
    param: nn.Parameter
    sharding: Sharding
    group: UpdateGroup
    num_counted: int
    """Elements that norms and counts take from here: none where another rank counts them, no padding rows of a vocabulary."""
    start: int
    """First element within the range."""
    param_start: int
    """First element within the rank's own flattened parameter."""
    numel: int

    @property
    def stop(self) -> int:
        """End within the range."""
        return self.start + self.numel


class FlatRange:
    """A contiguous range of weights with their gradients, main weights and state, which starts at zero."""

    def __init__(self, *, model: Tensor, grad: Tensor, pieces: Sequence[Piece], num_states: int, chunk: int = 0) -> None:
        """`chunk` is the model chunk of the weights."""
        self.model, self.grad, self.pieces, self.chunk = model, grad, tuple(pieces), chunk
        dtype = main_dtype(model.dtype)
        self.has_main = dtype != model.dtype
        """True: `main` is a copy in a wider dtype; False: it is `model` itself."""
        self.main = model.to(dtype) if self.has_main else model
        self.states = tuple(torch.zeros_like(self.main) for _ in range(num_states))

    def stretches(self, key: Callable[[Piece], K]) -> Iterator[tuple[K, slice]]:
        """Yield the longest stretches of pieces with equal keys."""
        first = 0
        for i, piece in enumerate(self.pieces):
            is_last = i + 1 == len(self.pieces)
            if is_last or key(self.pieces[i + 1]) != key(piece):
                yield key(piece), slice(self.pieces[first].start, piece.stop)
                first = i + 1

    def main_to_model(self) -> None:
        """Round the main weights into the model's."""
        if self.has_main:
            self.model.copy_(self.main)

    def model_to_main(self) -> None:
        """Take the main weights afresh from the model's."""
        if self.has_main:
            self.main.copy_(self.model)
