"""Which sample goes to which data-parallel rank: infinite or finite streams of microbatch indices, resumed by consumed
samples.

`sequential` (`dataloader_type: single`) walks the indices in order; `cyclic` draws a new permutation each epoch, seeded
with the epoch's number, without end. Nothing needs to be saved: a position is a function of the consumed samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from primus.errors import InputError

__all__ = ["Sampling", "cyclic", "sequential"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Batch arithmetic of one stream."""

    total: int
    """Samples of the dataset."""
    consumed: int
    """Samples that all ranks together have drawn before."""
    micro_batch_size: int
    rank: int
    """Data-parallel rank."""
    size: int
    """Data-parallel size."""

    @property
    def unit(self) -> int:
        """Samples of one microbatch over all ranks."""
        return self.micro_batch_size * self.size


def sequential(s: Sampling) -> Iterator[list[int]]:
    """Yield this rank's indices of each microbatch, in order, until less than a microbatch is left."""
    for start in range(s.consumed, s.total - s.unit + 1, s.unit):
        first = start + s.rank * s.micro_batch_size
        yield list(range(first, first + s.micro_batch_size))


def cyclic(s: Sampling, *, sharding: bool) -> Iterator[list[int]]:
    """Yield this rank's indices of each microbatch for ever.

    With `sharding` a rank owns a contiguous part of the indices and permutes it; without, all ranks share one permutation.
    InputError if the position does not lie between two microbatches of this batch arithmetic.
    """
    active = s.total // s.unit * s.unit
    if active == 0:
        raise InputError(
            f"dataloader_type cyclic needs at least one microbatch: the dataset has {s.total} samples, micro_batch_size "
            f"{s.micro_batch_size} x data-parallel size {s.size} is {s.unit}"
        )
    epoch, done = divmod(s.consumed, active)
    if done % s.unit:
        raise InputError(
            f"dataloader_type cyclic cannot resume after {s.consumed} consumed samples: they are not a multiple of "
            f"micro_batch_size {s.micro_batch_size} x data-parallel size {s.size}; keep both, or use dataloader_type single"
        )
    while True:
        indices = (
            _epoch(s, epoch, active, sharding)[done // s.size :] if sharding else _epoch(s, epoch, active, sharding)[done:]
        )
        mine = indices if sharding else indices[s.rank :: s.size]
        for start in range(0, len(mine) - s.micro_batch_size + 1, s.micro_batch_size):
            yield mine[start : start + s.micro_batch_size].tolist()
        epoch, done = epoch + 1, 0


def _epoch(s: Sampling, epoch: int, active: int, sharding: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(epoch)
    if sharding:
        bucket = active // s.size
        return torch.randperm(bucket, generator=generator) + s.rank * bucket
    return torch.randperm(active, generator=generator)
