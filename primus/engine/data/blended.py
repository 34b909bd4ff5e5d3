"""`BlendedDataset`: samples of several datasets in the proportion of their weights, without a random draw. No torch.

Sample k comes from the dataset that lags its share most: the largest `weight * max(k, 1) - taken`, the first of equals. Each
choice depends on all before it; `blend_index` still computes thousands of stretches side by side, since a stretch that starts
from a guess soon makes the same choices as the true one, and checks that each begins where the one before it ended.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.cache import cached_arrays
from primus.engine.data.gpt_dataset import GPTDataset, Sample, SampleRules

__all__ = ["BlendedDataset", "blend_exhaustively", "blend_index", "normalised"]

Index = tuple[NDArray[np.int16], NDArray[np.int64]]
Choices = NDArray[np.int16]
Counts = NDArray[np.int64]

_STRETCH = 2048
"""Samples that one lane computes; shorter ones cost more for the run-up, longer ones more steps."""
_RUN_UP = 512
"""Samples before a stretch by which its guess should have met the true choices."""


def normalised(weights: Sequence[float]) -> NDArray[np.float64]:
    """Return the weights divided by their sum."""
    given = np.asarray(weights, np.float64)
    shares: NDArray[np.float64] = given / given.sum()
    return shares


def blend_index(weights: Sequence[float], size: int) -> Index:
    """Return for each of `size` samples its dataset and its place there. Weights are normalised and positive."""
    # Twice, as Megatron-Core does when it reads a blend and when it builds one: the last bit decides between equals.
    shares = normalised(normalised(weights).tolist())
    datasets = _choose(shares, size)
    return datasets, _places(datasets, len(shares))


def blend_exhaustively(sizes: Sequence[int]) -> Index:
    """Return an index that takes every sample of every dataset once, in proportion to the sizes."""
    left = np.asarray(sizes, np.int64).copy()
    total = int(left.sum())
    shares, taken = left / total, np.zeros(len(left), np.int64)
    datasets = np.empty(total, np.int16)
    for k in range(total):
        chosen = int(np.argmax(np.where(left > 0, shares * max(k, 1) - taken, -np.inf)))
        datasets[k] = chosen
        taken[chosen] += 1
        left[chosen] -= 1
    return datasets, _places(datasets, len(left))


def _choose(shares: NDArray[np.float64], size: int) -> Choices:
    starts = np.arange(0, size, _STRETCH)
    run_up = np.minimum(starts, _RUN_UP)
    counts = _likely_counts(shares, starts - run_up)
    for step in range(_RUN_UP, 0, -1):
        lanes = np.flatnonzero(run_up >= step)
        counts[lanes] = _advance(shares, starts[lanes] - step, counts[lanes])[1]
    chosen, ends = _stretches(shares, starts, counts)
    for lane in range(1, len(starts)):
        if not np.array_equal(counts[lane], ends[lane - 1]):
            counts[lane] = ends[lane - 1]
            chosen[:, lane : lane + 1], ends[lane : lane + 1] = _stretches(shares, starts[lane : lane + 1], counts[lane, None])
    return chosen.T.reshape(-1)[:size]


def _stretches(shares: NDArray[np.float64], starts: NDArray[np.int64], counts: Counts) -> tuple[Choices, Counts]:
    """Return the choices `[_STRETCH, lanes]` from each start, and the counts behind them."""
    chosen = np.empty((_STRETCH, len(starts)), np.int16)
    for step in range(_STRETCH):
        chosen[step], counts = _advance(shares, starts + step, counts)
    return chosen, counts


def _advance(shares: NDArray[np.float64], k: NDArray[np.int64], counts: Counts) -> tuple[NDArray[np.intp], Counts]:
    """Return the choice of sample k in each lane, and the counts after it."""
    chosen = np.argmax(shares * np.maximum(k, 1)[:, None] - counts, axis=1)
    counts = counts.copy()
    counts[np.arange(len(k)), chosen] += 1
    return chosen, counts


def _likely_counts(shares: NDArray[np.float64], taken: NDArray[np.int64]) -> Counts:
    """Return whole counts near each share of `taken` samples, with that sum."""
    exact = shares * taken[:, None]
    counts = np.floor(exact).astype(np.int64)
    missing = taken - counts.sum(axis=1)
    order = np.argsort(counts - exact, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    counts += rank < missing[:, None]
    return counts


def _places(datasets: Choices, count: int) -> NDArray[np.int64]:
    """Return how many samples of the same dataset stand before each."""
    order = np.argsort(datasets, kind="stable")
    sizes = np.bincount(datasets, minlength=count)
    places = np.empty(len(datasets), np.int64)
    places[order] = np.arange(len(datasets)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


class BlendedDataset:
    """Several datasets as one."""

    def __init__(
        self,
        datasets: Sequence[GPTDataset],
        *,
        weights: Sequence[float] | None,
        size: int | None,
        split: str,
        cache: Path | None,
    ) -> None:
        """Blend by `weights` to `size` samples; without weights by length, all of them if `size` is None."""
        assert len(datasets) < np.iinfo(np.int16).max, "the index counts datasets in 16 bits"
        self._datasets = tuple(datasets)
        lengths = [len(dataset) for dataset in datasets]
        description = {"class": "BlendedDataset", "lengths": lengths, "weights": weights, "size": size, "split": split}

        def build() -> Index:
            return blend_exhaustively(lengths) if size is None else blend_index(weights or lengths, size)

        names = ("dataset_index", "dataset_sample_index")
        self.dataset_index, self.dataset_sample_index = cached_arrays(
            cache, f"BlendedDataset-{split}", description, names, build
        )

    def __len__(self) -> int:
        return len(self.dataset_index)

    @property
    def rules(self) -> SampleRules:
        """What makes tokens a sample."""
        return self._datasets[0].rules

    def __getitem__(self, item: int) -> Sample:
        """Return a sample."""
        return self.rules.sample(self.text(item))

    def text(self, item: int) -> NDArray[np.int64]:
        """Return the tokens of a sample; a dataset that is asked for more than it holds starts over."""
        dataset = self._datasets[int(self.dataset_index[item])]
        return dataset.text(int(self.dataset_sample_index[item]) % len(dataset))
