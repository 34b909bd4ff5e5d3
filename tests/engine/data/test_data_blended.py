"""Blends: published vectors, a plain greedy loop, sets that run out, many sets."""

from pathlib import Path

import numpy as np
import pytest

from primus.engine.config import Blend, DatasetConfig
from primus.engine.data import blended
from primus.engine.data.blended import BlendedDataset, blend_exhaustively, blend_index, normalised
from primus.engine.data.datasets import Dataset, build_datasets
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.data.splits import Sizes

RULES = SampleRules(seq_length=4, seed=1, eod=0)


def corpus(prefix: Path, first: int, documents: int) -> str:
    """Write documents of five tokens, the id of the document four times and an end: one sample each."""
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        for number in range(first, first + documents):
            builder.add_document([number] * 4 + [0])
    return str(prefix)


def train_set(blend: Blend, size: int, cache: Path) -> Dataset:
    config = DatasetConfig(train_blend=blend, cache_path=str(cache))
    train = build_datasets(config, rules=RULES, vocab_size=1000, sizes=Sizes(train=size, valid=0, test=0)).train
    assert train is not None
    return train


def greedy(weights: list[float], size: int) -> list[int]:
    shares, taken, chosen = normalised(normalised(weights).tolist()), [0] * len(weights), []
    for k in range(size):
        lags = [share * max(k, 1) - count for share, count in zip(shares, taken, strict=True)]
        chosen.append(lags.index(max(lags)))
        taken[chosen[-1]] += 1
    return chosen


@pytest.mark.parametrize(
    ("weights", "datasets", "samples"),
    [
        ((0.3, 0.7), [1, 0, 1, 1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]),
        ((0.5, 0.25, 0.25), [0, 1, 2, 0, 0, 1, 2, 0], [0, 0, 0, 1, 2, 1, 1, 3]),
    ],
)
def test_blends_equal_the_published_vectors(weights: tuple[float, ...], datasets: list[int], samples: list[int]) -> None:
    index = blend_index(weights, len(datasets))
    assert (index[0].tolist(), index[1].tolist()) == (datasets, samples)
    assert (index[0].dtype, index[1].dtype) == (np.int16, np.int64)


def test_exhaustive_blend_takes_every_sample_once() -> None:
    datasets, samples = blend_exhaustively((3, 7))
    assert datasets.tolist() == [1, 0, 1, 1, 0, 1, 1, 0, 1, 1]
    assert samples.tolist() == [0, 0, 1, 2, 1, 3, 4, 2, 5, 6]


@pytest.mark.parametrize("run_up", [512, 0], ids=["met", "not met"])
@pytest.mark.parametrize(
    "weights", [[0.3, 0.7], [1e-3, 0.999], [1.0] * 7, [5.0, 3.0, 2.0], [0.11, 0.23, 0.31, 0.35], [2.0**-i for i in range(12)]]
)
def test_stretches_side_by_side_choose_like_one_loop(
    weights: list[float], run_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blended, "_STRETCH", 100)
    monkeypatch.setattr(blended, "_RUN_UP", run_up)
    datasets, samples = blend_index(weights, 5050)
    assert datasets.tolist() == greedy(weights, 5050)
    for number in range(len(weights)):
        mine = samples[datasets == number]
        np.testing.assert_array_equal(mine, np.arange(len(mine)))


def test_a_set_that_runs_out_is_repeated_and_counts_stay_exact(tmp_path: Path) -> None:
    a, b = corpus(tmp_path / "a", 1, 4), corpus(tmp_path / "b", 100, 50)
    train = train_set(Blend(prefixes=(a, b), weights=(0.001, 0.999)), 20_000, tmp_path)
    drawn = np.array([train[item]["tokens"].max() for item in range(20_000)])
    assert abs((drawn < 100).sum() - 20) <= 1
    assert abs((drawn >= 100).sum() - 19_980) <= 1


def test_three_hundred_sets_all_appear(tmp_path: Path) -> None:
    prefixes = tuple(corpus(tmp_path / f"set-{i}", i, 1) for i in range(1, 301))
    train = train_set(Blend(prefixes=prefixes, weights=(1.0,) * 300), 300, tmp_path)
    assert {int(train[item]["tokens"].max()) for item in range(300)} == set(range(1, 301))


def test_blend_without_weights_goes_on_behind_one_epoch(tmp_path: Path) -> None:
    a, b = corpus(tmp_path / "a", 1, 10), corpus(tmp_path / "b", 100, 30)
    once = train_set(Blend(prefixes=(a, b)), 20, tmp_path)
    assert len(once) == 20
    more = train_set(Blend(prefixes=(a, b)), 400, tmp_path)
    assert isinstance(more, BlendedDataset)
    assert len(more) >= 400
    share = np.mean([more[item]["tokens"].max() < 100 for item in range(400)])
    assert share == pytest.approx(0.25, abs=0.01)


def test_a_weight_of_zero_leaves_its_set_out(tmp_path: Path) -> None:
    a, b = corpus(tmp_path / "a", 1, 4), corpus(tmp_path / "b", 100, 4)
    train = train_set(Blend(prefixes=(a, b), weights=(0.0, 1.0)), 30, tmp_path)
    assert min(train[item]["tokens"].max() for item in range(30)) >= 100
