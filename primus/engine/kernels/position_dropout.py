"""Dropout of attention probabilities by position: whoever computes a piece of them, wherever and however often, drops the same.

Element i of the whole mask [B, N, S, S] is the i-th number that SplitMix64 draws from the seed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.kernels.split_mix import STEP, is_kept, mixed, signed

__all__ = ["PositionDropout"]


@dataclass(frozen=True, slots=True)
class PositionDropout:
    """The mask of one attention over sequences of `length`."""

    seed: int
    probability: float
    length: int
    share: tuple[int, int] = (0, 1)
    """Which of how many equal shares of the heads is asked for."""

    def factors(self, q_BNQD: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return what to multiply probabilities [B, N, Q, K] with: 0 where one is dropped, else 1 / (1 - probability).

        `rows` [Q] and `columns` [K] are positions of queries and keys in the whole sequence, int64 on the queries' device. The
        dtype is the queries', at least fp32.
        """
        batch, heads = q_BNQD.shape[:2]
        number, count = self.share
        places = torch.arange(heads, device=rows.device) + number * heads
        sequences = torch.arange(batch, device=rows.device) * (heads * count)
        starts = ((sequences[:, None, None] + places[:, None]) * self.length + rows) * self.length
        numbers = mixed((starts.unsqueeze(-1) + columns).add_(1).mul_(STEP).add_(signed(self.seed)))
        dtype = torch.promote_types(q_BNQD.dtype, torch.float32)
        if self.probability == 1.0:
            return torch.zeros(numbers.shape, dtype=dtype, device=rows.device)
        return is_kept(numbers, self.probability).to(dtype).mul_(1.0 / (1.0 - self.probability))
