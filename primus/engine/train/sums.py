"""`BatchSums`: what is added up over all sequences of a global batch; `TokenCounts`: what is known before its forwards."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from primus.engine.data.loader import Batch
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group

__all__ = ["BatchSums", "TokenCounts", "Work"]


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


class TokenCounts(NamedTuple):
    """Tokens of a global batch."""

    trained: float
    """Those with a loss."""
    real: float
    """All that do not only fill sequences up."""

    @classmethod
    def of(cls, batches: Sequence[Batch], dp: Group) -> "TokenCounts":
        """Count over the microbatches of all data-parallel ranks, which call it together."""
        trained = torch.stack([batch.loss_mask.sum(dtype=torch.float64) for batch in batches]).sum()
        filled = [batch.padding.sum() for batch in batches if batch.padding is not None]
        real = trained.new_tensor(sum(batch.tokens.numel() for batch in batches)) - sum(filled)
        return cls(*all_reduce_(torch.stack((trained, real)), dp).tolist())
