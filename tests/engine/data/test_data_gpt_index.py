"""Sample indices: published vectors, a plain walk over random documents, and splits."""

from typing import Any

import numpy as np
import pytest

from primus.engine.config import EvaluationConfig, TrainConfig
from primus.engine.data.gpt_index import build_gpt_index
from primus.engine.data.splits import Sizes, split_bounds, split_sizes

LENGTHS = np.array([4, 3, 5, 2, 6], np.int32)
TOKENS = [[11, 12, 13, 0], [21, 22, 0], [31, 32, 33, 34, 0], [41, 0], [51, 52, 53, 54, 55, 0]]
ONE = ("40123", [(0, 0), (0, 4), (1, 2), (2, 2), (3, 3)], [2, 1, 3, 0])
TWO = (
    "4012332104",
    [(0, 0), (0, 4), (1, 2), (2, 2), (3, 3), (5, 0), (6, 2), (7, 1), (8, 2), (9, 2)],
    [2, 0, 3, 1, 5, 8, 4, 6, 7],
)
MIXED = (
    "2241034013",
    [(0, 0), (0, 4), (1, 3), (2, 2), (3, 0), (4, 1), (5, 1), (6, 3), (7, 1), (8, 1)],
    [7, 3, 5, 1, 4, 8, 0, 2, 6],
)
THREE = (
    "224103401304321",
    [(8, 1), (10, 0), (11, 0), (11, 4), (13, 0), (13, 4)],
    [7, 3, 5, 1, 4, 8, 0, 2, 6, 13, 10, 12, 9, 11],
)
TWELVE = (
    "310242021434013",
    [
        (0, 0),
        (1, 2),
        (2, 3),
        (3, 3),
        (4, 2),
        (5, 0),
        (5, 4),
        (6, 3),
        (7, 3),
        (8, 2),
        (9, 3),
        (10, 1),
        (11, 3),
        (12, 1),
        (13, 1),
    ],
    [11, 12, 4, 3, 7, 2, 1, 9, 5, 0, 8, 13, 6, 10],
)


@pytest.mark.parametrize(
    ("num_samples", "expected"),
    [(None, ONE), (3, ONE), (4, ONE), (5, TWO), (6, TWO), (7, MIXED), (9, MIXED), (10, THREE), (12, TWELVE)],
)
def test_indices_equal_the_published_vectors(num_samples: int | None, expected: tuple[str, list[tuple[int, int]], list[int]]):
    index = build_gpt_index(np.arange(5, dtype=np.int32), LENGTHS, seq_length=4, num_samples=num_samples, seed=1234)
    documents, samples, shuffle = expected
    assert index.documents.tolist() == [int(digit) for digit in documents]
    assert [tuple(row) for row in index.samples.tolist()][-len(samples) :] == samples
    assert index.shuffle.tolist() == shuffle
    assert (index.documents.dtype, index.samples.dtype, index.shuffle.dtype) == (np.int32, np.int32, np.uint32)


@pytest.mark.parametrize("seed", range(20))
def test_samples_are_the_windows_of_the_documents_laid_end_to_end(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = (draw.integers(0, 9, 40) * draw.integers(0, 2, 40)).astype(np.int32)
    lengths[7] = 30
    ids = np.arange(3, 40, dtype=np.int32)
    seq_length = int(draw.integers(1, 12))
    index = build_gpt_index(ids, lengths, seq_length=seq_length, num_samples=int(draw.integers(1, 60)), seed=seed)
    stream = [(int(place), offset) for place, document in enumerate(index.documents) for offset in range(lengths[document])]
    assert len(index.samples) == (len(stream) - 1) // seq_length + 1
    for k, (place, offset) in enumerate(index.samples.tolist()):
        if k > 0:
            assert (place, offset) == stream[k * seq_length]
    assert index.samples[0].tolist() == [0, 0]
    assert sorted(index.shuffle.tolist()) == list(range(len(index.samples) - 1))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("99,1,0", ((0, 99), (99, 100), None)),
        ("969, 30, 1", ((0, 97), (97, 100), (100, 100))),
        ("90", ((0, 100), None, None)),
        ("98/2", ((0, 98), (98, 100), None)),
        ("[0.7,0.2,0.1]", ((0, 70), (70, 90), (90, 100))),
        ("1,1,1", ((0, 33), (33, 67), (67, 100))),
    ],
)
def test_splits_are_contiguous_shares(split: str, expected: tuple[tuple[int, int] | None, ...]) -> None:
    assert split_bounds(split, 100) == expected


def sizes(*, rampup: tuple[int, int, int] | None = None, skip_train: bool = False, **evaluation: Any) -> Sizes:
    train = TrainConfig(
        micro_batch_size=1,
        global_batch_size=8,
        train_iters=100,
        rampup_batch_size=rampup,
        skip_train=skip_train,
        evaluation=EvaluationConfig(**{"eval_iters": 5, **evaluation}),
    )
    return split_sizes(train)


def test_validation_is_sized_for_every_interval_and_the_end() -> None:
    assert sizes(eval_interval=30) == Sizes(train=800, valid=4 * 5 * 8, test=40)
    assert sizes(eval_interval=None) == Sizes(train=800, valid=40, test=40)
    assert sizes(eval_interval=30, skip_train=True) == Sizes(train=0, valid=40, test=40)
    assert sizes(eval_interval=30, full_validation=True) == Sizes(train=800, valid=None, test=40)
    assert sizes(eval_interval=30, eval_iters=0) == Sizes(train=800, valid=0, test=0)


def test_a_batch_ramp_draws_fewer_samples() -> None:
    assert sizes(rampup=(2, 2, 12)).train == 22 + 95 * 8
