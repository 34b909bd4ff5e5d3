"""`BlendedDataset`: samples of several datasets in the proportion of their weights, without a random draw. No torch.

Sample k comes from the dataset that lags its share most: the largest `weight * max(k, 1) - taken`, the first of equals.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.cache import cached_arrays
from primus.engine.data.gpt_dataset import GPTDataset, Sample

__all__ = ["BlendedDataset", "blend_exhaustively", "blend_index"]

Index = tuple[NDArray[np.int16], NDArray[np.int64]]


def blend_index(weights: Sequence[float], size: int) -> Index:
    """Return for each of `size` samples its dataset and its place there. Weights are normalised."""
    shares = np.asarray(weights, np.float64) / np.sum(weights)
    taken = np.zeros(len(shares), np.int64)
    datasets, samples = np.empty(size, np.int16), np.empty(size, np.int64)
    for k in range(size):
        chosen = int(np.argmax(shares * max(k, 1) - taken))
        datasets[k], samples[k] = chosen, taken[chosen]
        taken[chosen] += 1
    return datasets, samples


def blend_exhaustively(sizes: Sequence[int]) -> Index:
    """Return an index that takes every sample of every dataset once, in proportion to the sizes."""
    left = np.asarray(sizes, np.int64).copy()
    total = int(left.sum())
    shares = left / total
    taken = np.zeros(len(shares), np.int64)
    datasets, samples = np.empty(total, np.int16), np.empty(total, np.int64)
    for k in range(total):
        lag = np.where(left > 0, shares * max(k, 1) - taken, -np.inf)
        chosen = int(np.argmax(lag))
        datasets[k], samples[k] = chosen, taken[chosen]
        taken[chosen] += 1
        left[chosen] -= 1
    return datasets, samples


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

    def __getitem__(self, item: int) -> Sample:
        dataset = self._datasets[int(self.dataset_index[item])]
        return dataset[int(self.dataset_sample_index[item]) % len(dataset)]
