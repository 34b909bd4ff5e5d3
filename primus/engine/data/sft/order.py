"""Which samples are in which microbatch: a function of what all ranks consumed before, so that a resumed run goes on.

`batch` draws a permutation an epoch, seeded by seed + epoch, and an epoch is what whole global batches cover. Data-parallel
rank r of n takes places r, r + n, r + 2 n, ... of a global batch, so a batch has the same samples in every layout.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.samplers import PADDING, Sampling
from primus.errors import InputError

__all__ = ["Order", "in_turn_of_ranks", "round_and_round"]

_Kind = Literal["batch", "single", "cyclic"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """The order of samples over epochs."""

    total: int
    """Samples there are."""
    batch: int
    """Samples of a global batch."""
    seed: int
    kind: _Kind = "batch"

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch: whole global batches; InputError if there is not one."""
        if self.total < self.batch:
            raise InputError(f"there are {self.total} samples to train on, fewer than global_batch_size {self.batch}: lower it")
        return self.total // self.batch * self.batch

    def epoch(self, number: int) -> NDArray[np.int64]:
        """Return the samples of an epoch."""
        if self.kind == "single":
            return np.arange(self.epoch_samples)
        drawn = np.random.default_rng(self.seed + number).permutation(self.total)
        return drawn[: self.epoch_samples]


def in_turn_of_ranks(order: Order, s: Sampling, consumed: int) -> Iterator[list[int]]:
    """Yield this rank's samples of each microbatch, for ever; all ranks have consumed `consumed` before."""
    epoch, done = divmod(consumed, order.epoch_samples)
    while True:
        drawn = order.epoch(epoch)
        for start in range(done, len(drawn) - s.unit + 1, s.unit):
            yield drawn[start + s.rank : start + s.unit : s.size].tolist()
        epoch, done = epoch + 1, 0


def round_and_round(s: Sampling, consumed: int, *, whole: bool) -> Iterator[list[int]]:
    """Yield a rank's samples of each microbatch of an evaluation, in order and again; a whole pass fills up with `PADDING`."""
    length = s.num_whole * s.unit if whole else s.total
    place = 0 if whole else consumed
    while True:
        numbers = [(place + s.rank + turn * s.size) % length for turn in range(s.micro_batch_size)]
        yield [number if number < s.total else PADDING for number in numbers]
        place += s.unit
