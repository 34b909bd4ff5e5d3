"""`BatchSums`: what is added up over all sequences of a global batch."""

from itertools import pairwise
from typing import NamedTuple

from primus.engine.data.loader import Batch

__all__ = ["BatchSums", "Work"]


class Work(NamedTuple):
    """How much arithmetic sequences cost."""

    tokens: int = 0
    """With those that have no loss, and padding."""
    squares: int = 0
    """Sum over samples of the square of their length, which attention goes by."""

    def and_of(self, batch: Batch) -> "Work":
        """Return this and the work of a microbatch."""
        rows, length = batch.tokens.shape
        if batch.cu_seqlens is None:
            return Work(self.tokens + rows * length, self.squares + rows * length**2)
        squares = sum((stop - start) ** 2 for start, stop in pairwise(batch.cu_seqlens))
        return Work(self.tokens + length, self.squares + squares)


class BatchSums(NamedTuple):
    """Over microbatches and data-parallel ranks."""

    loss: float
    trained_tokens: float
    """Those with a loss."""
    tokens: float
    squares: float

    @property
    def mean_loss(self) -> float:
        """Loss of a token; 0 if none has one."""
        return self.loss / max(self.trained_tokens, 1.0)
