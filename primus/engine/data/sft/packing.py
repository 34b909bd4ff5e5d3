"""Several samples in a sequence: `pack` puts lengths into bins by first fit, and each bin is a sequence of `Packs`.

A tree over the bins holds the most room in each of its halves, so that the first bin with enough room is found in log n steps.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from primus.engine.config import PackingConfig
from primus.errors import InputError

__all__ = ["Packs", "pack"]


class Packs:
    """The samples of each sequence, by number."""

    def __init__(self, numbers: NDArray[np.int64], bounds: NDArray[np.int64]) -> None:
        """`numbers` are those of one sequence behind the other; `bounds` where they begin, and the end of the last."""
        self.numbers, self.bounds = numbers, bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> Sequence[int]:
        part: list[int] = self.numbers[int(self.bounds[number]) : int(self.bounds[number + 1])].tolist()
        return part

    @property
    def counts(self) -> NDArray[np.int64]:
        """The samples of each sequence."""
        return np.diff(self.bounds)


def pack(lengths: Sequence[int] | NDArray[np.int64], config: PackingConfig, *, seed: int) -> list[list[int]]:
    """Return the samples of each bin by number; InputError if one is longer than a bin."""
    lengths = np.asarray(lengths).tolist()
    longest = max(lengths, default=0)
    if longest > config.size:
        raise InputError(f"a sample of {longest} tokens does not fit into a pack of {config.size}: raise seq_length")
    if config.algorithm == "first_fit_decreasing":
        order = np.argsort(-np.asarray(lengths), kind="stable")
    else:
        order = np.random.default_rng(seed).permutation(len(lengths))
    bins: list[list[int]] = []
    room = _Room(len(lengths), config.size)
    for number in order.tolist():
        place = room.first(lengths[number])
        if place == len(bins):
            bins.append([])
        bins[place].append(number)
        room.take(place, lengths[number])
    return bins


class _Room:
    """What is left in each of a number of bins."""

    def __init__(self, count: int, size: int) -> None:
        self._leaves = 1 << max(0, count - 1).bit_length()
        self._most = np.full(2 * self._leaves, size, np.int64)

    def first(self, needed: int) -> int:
        """Return the first bin with that much room; there always is one that is empty."""
        node = 1
        while node < self._leaves:
            node = 2 * node + (self._most[2 * node] < needed)
        return int(node) - self._leaves

    def take(self, place: int, length: int) -> None:
        node = place + self._leaves
        self._most[node] -= length
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])
