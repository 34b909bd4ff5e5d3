"""Which sample goes to which data-parallel rank: streams of microbatch indices, resumed by consumed samples.

`sequential` (`dataloader_type: single`) walks the indices in order, again and again; `cyclic` draws a new permutation each
epoch, seeded with the epoch's number. Neither ends: an epoch is what whole microbatches cover, and a position is a function of
the consumed samples, so that nothing needs to be saved. A GPT dataset holds all samples of a run, shuffled over its epochs;
a second walk is met only by who consumes more than was planned.

`whole` is for passes over every sample: its last microbatch may be filled up with `PADDING`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from primus.errors import InputError

__all__ = ["PADDING", "Sampling", "cyclic", "sequential", "whole"]

PADDING = -1
"""Index of a sample that only fills a microbatch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Batch arithmetic of one stream."""

    total: int
    """Samples of the dataset."""
    micro_batch_size: int
    rank: int
    """Data-parallel rank."""
    size: int
    """Data-parallel size."""

    @property
    def unit(self) -> int:
        """Samples of one microbatch over all ranks."""
        return self.micro_batch_size * self.size

    @property
    def num_whole(self) -> int:
        """Microbatches of a rank in a pass over every sample."""
        return -(-self.total // self.unit)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch; InputError if the dataset does not fill one microbatch."""
        if self.total < self.unit:
            raise InputError(
                f"the dataset has {self.total} samples, less than one microbatch: micro_batch_size {self.micro_batch_size} x "
                f"data-parallel size {self.size} is {self.unit}"
            )
        return self.total // self.unit * self.unit


def sequential(s: Sampling, consumed: int = 0) -> Iterator[list[int]]:
    """Yield this rank's indices of each microbatch, in order, over and over; all ranks have drawn `consumed` samples before."""
    start = consumed if consumed + s.unit <= s.total else consumed % s.epoch_samples
    while True:
        for base in range(start, s.total - s.unit + 1, s.unit):
            first = base + s.rank * s.micro_batch_size
            yield list(range(first, first + s.micro_batch_size))
        start = 0


def whole(s: Sampling) -> Iterator[list[int]]:
    """Yield this rank's indices of each microbatch of a full pass, and of the next one, for ever."""
    while True:
        for base in range(s.rank * s.micro_batch_size, s.rank * s.micro_batch_size + s.num_whole * s.unit, s.unit):
            yield [index if index < s.total else PADDING for index in range(base, base + s.micro_batch_size)]


def cyclic(s: Sampling, consumed: int = 0, *, sharding: bool) -> Iterator[list[int]]:
    """Yield this rank's indices of each microbatch for ever; all ranks have drawn `consumed` samples before.

    With `sharding` a rank owns a contiguous part of the indices and permutes it; without, all ranks share one permutation.
    InputError if the position does not lie between two microbatches of this batch arithmetic.
    """
    epoch, done = divmod(consumed, s.epoch_samples)
    if done % s.unit:
        raise InputError(
            f"dataloader_type cyclic cannot resume after {consumed} consumed samples: they are not a multiple of "
            f"micro_batch_size {s.micro_batch_size} x data-parallel size {s.size}; keep both, or use dataloader_type single"
        )
    while True:
        mine = _own_part(s, epoch)[done // s.size :] if sharding else _common(s, epoch)[done:][s.rank :: s.size]
        for start in range(0, len(mine), s.micro_batch_size):
            yield mine[start : start + s.micro_batch_size].tolist()
        epoch, done = epoch + 1, 0


def _own_part(s: Sampling, epoch: int) -> torch.Tensor:
    bucket = s.epoch_samples // s.size
    return torch.randperm(bucket, generator=torch.Generator().manual_seed(epoch)) + s.rank * bucket


def _common(s: Sampling, epoch: int) -> torch.Tensor:
    """Return the permutation that all ranks share: of every sample that fills a microbatch, cut where the ranks would part."""
    drawn = s.total // s.micro_batch_size * s.micro_batch_size
    return torch.randperm(drawn, generator=torch.Generator().manual_seed(epoch))[: s.epoch_samples]
