"""Dropout of attention probabilities by position: whoever computes a piece of them, wherever and however often, drops the same.

Element i of the whole mask [B, N, S, S] is the i-th number that SplitMix64 draws from the seed (Steele, Lea and Flood 2014,
doi 10.1145/2660193.2660195). Its state is the seed plus i times a constant, so any number can be had without those before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PositionDropout"]

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


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
        numbers = _mixed((starts.unsqueeze(-1) + columns).add_(1).mul_(_signed(_STEP)).add_(_signed(self.seed)))
        dtype = torch.promote_types(q_BNQD.dtype, torch.float32)
        if self.probability == 1.0:
            return torch.zeros(numbers.shape, dtype=dtype, device=rows.device)
        is_kept = numbers >= int(self.probability * 2**64) - 2**63
        return is_kept.to(dtype).mul_(1.0 / (1.0 - self.probability))


def _mixed(state: Tensor) -> Tensor:
    """Return SplitMix64's numbers of its states, in place; torch has 64 bits with a sign only, whose products wrap alike."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        state.bitwise_xor_(_shifted(state, shift)).mul_(_signed(factor))
    return state.bitwise_xor_(_shifted(state, 31))


def _shifted(x: Tensor, count: int) -> Tensor:
    """Shift right without copies of the sign."""
    return (x >> count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
