"""Where ranks learn whether the step before stands: in time, and in an order in which nobody waits for ever."""

import pytest

from primus.engine.config.pipeline import ALGORITHMS, Algorithm
from primus.engine.pipeline.schedules import build_schedule, pause_of, pauses


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_only_forwards_of_the_first_chunk_whose_input_is_there_stand_before_a_pause(algorithm: Algorithm) -> None:
    for p in (1, 2, 3, 4, 8):
        for m in (2 * p, 5 * p):
            schedule = build_schedule(algorithm, p, m)
            points = pauses(schedule)
            assert points[-1] == 0, "the last rank knows at once"
            assert list(points) == sorted(points, reverse=True), "a rank waits for no more than the one before has sent"
            for row, point in zip(schedule.rows, points, strict=True):
                assert [(op.kind, op.chunk, op.microbatch) for op in row[:point]] == [("F", 0, i) for i in range(point)]


def test_the_word_comes_down_in_the_meantime() -> None:
    """2(p-1-r) forwards where the schedule has so many before its first backward, and no more than m-1."""
    assert pauses(build_schedule("zero-bubble-heuristic", 4, 8, max_memory=7)) == (6, 4, 2, 0)
    assert pauses(build_schedule("zero-bubble", 4, 8)) == (4, 3, 2, 0)
    assert pauses(build_schedule("v-half", 4, 8)) == (5, 4, 2, 0)
    assert pauses(build_schedule("zero-bubble", 4, 2)) == (1, 1, 1, 0)


def test_a_rank_knows_what_was_sent_to_it_before() -> None:
    schedule = build_schedule("v-half", 4, 8)
    assert [pause_of(schedule, rank) for rank in range(4)] == [
        type(pause_of(schedule, 0))(at=at, sent=sent) for at, sent in ((5, {}), (4, {0: 5}), (2, {1: 4}), (0, {2: 2}))
    ]
