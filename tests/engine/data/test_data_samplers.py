"""Samplers: which rank draws which sample, across epochs and resumes."""

from itertools import chain, islice

import pytest

from primus.engine.data.samplers import PADDING, Sampling, cyclic, sequential, whole
from primus.errors import InputError

CYCLIC = {"in turn": False, "own part": True}


def sampling(total: int, *, micro: int = 1, rank: int = 0, size: int = 1) -> Sampling:
    return Sampling(total=total, micro_batch_size=micro, rank=rank, size=size)


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def test_single_gives_each_rank_its_slice_of_every_chunk() -> None:
    of_rank = [list(islice(sequential(sampling(20, micro=2, rank=rank, size=2), 4), 3)) for rank in (0, 1)]
    assert of_rank == [[[4, 5], [8, 9], [12, 13]], [[6, 7], [10, 11], [14, 15]]]


def test_single_starts_over_where_no_whole_microbatch_is_left() -> None:
    straight = list(islice(sequential(sampling(10, micro=2, size=2)), 5))
    assert straight == [[0, 1], [4, 5], [0, 1], [4, 5], [0, 1]]
    for done in range(5):
        assert list(islice(sequential(sampling(10, micro=2, size=2), 4 * done), 5 - done)) == straight[done:]


def test_cyclic_permutes_by_epoch_as_torch_does() -> None:
    drawn = list(islice(cyclic(sampling(10), sharding=False), 20))
    assert flat(drawn[:10]) == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
    assert flat(drawn[10:]) == [5, 6, 1, 2, 0, 8, 9, 3, 7, 4]


@pytest.mark.parametrize("sharding", CYCLIC.values(), ids=CYCLIC)
def test_cyclic_ranks_share_an_epoch_without_overlap(sharding: bool) -> None:
    ranks = [list(islice(cyclic(sampling(27, micro=3, rank=r, size=2), sharding=sharding), 4)) for r in (0, 1)]
    assert len(set(flat(ranks[0] + ranks[1]))) == 24
    if sharding:
        assert {index // 12 for index in flat(ranks[1])} == {1}


@pytest.mark.parametrize("sharding", CYCLIC.values(), ids=CYCLIC)
def test_cyclic_resumes_anywhere_also_at_the_end_of_an_epoch(sharding: bool) -> None:
    straight = list(islice(cyclic(sampling(26, micro=2, rank=1, size=2), sharding=sharding), 15))
    for done in range(13):
        resumed = cyclic(sampling(26, micro=2, rank=1, size=2), 4 * done, sharding=sharding)
        assert list(islice(resumed, 15 - done)) == straight[done:]


def test_second_epoch_is_another_permutation_of_the_first() -> None:
    batches = list(islice(cyclic(sampling(24, micro=8), sharding=True), 6))
    first, second = flat(batches[:3]), flat(batches[3:])
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second


@pytest.mark.parametrize(("total", "micro", "size"), [(10, 2, 2), (12, 2, 2), (1, 2, 3), (7, 1, 1)])
def test_a_whole_pass_meets_every_sample_once_and_fills_the_last_microbatch_up(total: int, micro: int, size: int) -> None:
    of_rank = [sampling(total, micro=micro, rank=rank, size=size) for rank in range(size)]
    rounds = of_rank[0].num_whole
    assert (rounds - 1) * micro * size < total <= rounds * micro * size
    streams = [whole(one) for one in of_rank]
    for _ in range(2):
        drawn = [batch for stream in streams for batch in islice(stream, rounds)]
        assert {len(batch) for batch in drawn} == {micro}
        assert sorted(flat(drawn)) == [PADDING] * (rounds * micro * size - total) + list(range(total))


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="3 samples, less than one microbatch: micro_batch_size 2 x data-parallel size 2 is 4"):
        next(cyclic(sampling(3, micro=2, size=2), sharding=True))
    with pytest.raises(InputError, match="3 samples, less than one microbatch"):
        next(sequential(sampling(3, micro=2, size=2)))
    with pytest.raises(InputError, match=r"cannot resume after 6 consumed samples.*micro_batch_size 2 x data-parallel size 2"):
        next(cyclic(sampling(20, micro=2, size=2), 6, sharding=True))
