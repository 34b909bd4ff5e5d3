"""Tables with copies to the host: complete, in order, without more waiting than the link needs, and with lower peaks."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from primus.engine.config.offload import OffloadConfig, estimated_copy_time
from primus.engine.config.pipeline import OFFLOADING_V, Algorithm, PipelineConfig
from primus.engine.pipeline.schedules import (
    ALGORITHMS,
    Costs,
    Op,
    Schedule,
    ScheduleError,
    build_schedule,
    peak_activations,
    rank_plan,
    schedule_of,
    simulate,
)
from primus.errors import InputError

FIRST = OffloadConfig(tensors="all", num_chunks=1, time=0.1)


def compute(schedule: Schedule, rank: int) -> list[Op]:
    return [op for op in schedule.rows[rank] if op.kind in "FBW"]


def pair(algorithm: Algorithm, p: int, m: int, offload: OffloadConfig = FIRST, **more: Any) -> tuple[Schedule, Schedule]:
    """Return a table without and with copies."""
    return build_schedule(algorithm, p, m, **more), build_schedule(algorithm, p, m, offload=offload, **more)


@pytest.mark.parametrize("algorithm", OFFLOADING_V)
def test_folded_tables_keep_their_order_run_to_their_end_and_hold_no_more(algorithm: Algorithm) -> None:
    for p, m in itertools.product((2, 3, 4, 5, 8, 16), (1, 2, 7, 15, 31, 40)):
        if algorithm == "zbv-formatted" and m < 2 * p - 1:
            continue
        plain, offloaded = pair(algorithm, p, m)
        simulate(offloaded, Costs(forward=1.0, input_grad=1.3, weight_grad=0.7, transfer=0.1, copy=2.5))
        for rank in range(p):
            assert compute(offloaded, rank) == list(plain.rows[rank])
            assert peak_activations(offloaded, rank) <= peak_activations(plain, rank)
        assert simulate(offloaded, Costs(copy=1.0)).makespan == simulate(plain).makespan


@pytest.mark.parametrize("p", [4, 5, 8, 16])
def test_folded_tables_hold_half_a_microbatch_less_at_least(p: int) -> None:
    for algorithm in OFFLOADING_V:
        plain, offloaded = (simulate(each) for each in pair(algorithm, p, 3 * p))
        assert max(offloaded.peaks) <= max(plain.peaks) - 0.5
        assert offloaded.peaks[0] <= plain.peaks[0] / 2
        assert min(offloaded.parked) > 0


def test_a_folded_copy_has_one_operation_each_way() -> None:
    """As published: O after the operation that follows the forward, R before the one that precedes the backward."""
    row = build_schedule("zbv-formatted", 2, 4, offload=FIRST).rows[0]
    plain = build_schedule("zbv-formatted", 2, 4).rows[0]
    for m in range(4):
        forward, backward = plain.index(Op("F", m)), plain.index(Op("B", m))
        if backward - forward < 4:  # nothing would run between the copies
            assert Op("O", m) not in row
            continue
        assert [op for op in row[: row.index(Op("O", m))] if op.kind in "FBW"] == list(plain[: forward + 2])
        assert [op for op in row[: row.index(Op("R", m))] if op.kind in "FBW"] == list(plain[: backward - 1])
    assert {op.chunk for op in row if op.kind in "OR"} == {0}


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_groups_with_copies_run_to_their_end_in_the_same_order_and_hold_no_more(p: int) -> None:
    cases = itertools.product((1, p, 2 * p + 1), (2, 3), (1, p), (1, 2), (0.01, 0.2, 0.5), (True, False))
    num_refused = 0
    for m, v, group, chunks, time, overlaps in cases:
        offload = OffloadConfig(tensors="all", num_chunks=chunks, time=time, overlaps=overlaps)
        plain = build_schedule("group-interleaved", p, m, num_chunks=v, group_size=group)
        try:
            offloaded = build_schedule("group-interleaved", p, m, num_chunks=v, group_size=group, offload=offload)
        except InputError:
            num_refused += 1
            continue
        simulate(offloaded, Costs(input_grad=1.3, weight_grad=0.7, transfer=0.1, copy=2.5))
        for rank in range(p):
            assert compute(offloaded, rank) == list(plain.rows[rank])
            assert peak_activations(offloaded, rank) <= peak_activations(plain, rank)
    assert num_refused < 40


@pytest.mark.parametrize(("chunks", "share"), [(1, 0.5), (2, 0.2)])
def test_groups_hold_the_less_the_more_chunks_leave(chunks: int, share: float) -> None:
    plain, offloaded = pair("group-interleaved", 8, 16, replace(FIRST, num_chunks=chunks, time=0.05))
    assert max(simulate(offloaded).peaks) <= share * max(simulate(plain).peaks)
    assert simulate(offloaded, Costs(copy=3 * 0.05)).makespan == simulate(plain).makespan
    assert {op.chunk for row in offloaded.rows for op in row if op.kind == "O"} == set(range(chunks))


def test_slow_copies_save_later_and_load_earlier() -> None:
    def stay(time: float) -> int:
        row = build_schedule("group-interleaved", 8, 16, offload=replace(FIRST, time=time)).rows[0]
        return row.index(Op("R", 8)) - row.index(Op("O", 8))

    assert stay(0.02) > stay(0.5) > 0


def test_without_overlap_loads_keep_to_the_slots_between_saves() -> None:
    beside, between = (
        build_schedule("group-interleaved", 8, 16, offload=replace(FIRST, time=0.75, overlaps=overlaps))
        for overlaps in (True, False)
    )
    assert sum(simulate(between).parked) < sum(simulate(beside).parked)


def test_what_would_be_back_at_once_stays() -> None:
    assert build_schedule("group-interleaved", 2, 4, offload=replace(FIRST, time=5.0)).rows == (
        build_schedule("group-interleaved", 2, 4).rows
    )


def test_a_slow_link_delays_what_waits_for_it() -> None:
    """The copies of one rank follow one another."""
    _, offloaded = pair("v-half", 4, 8)
    fast, slow = (simulate(offloaded, Costs(copy=copy)).makespan for copy in (1.0, 4.0))
    assert slow > fast


def test_a_plan_says_which_forwards_leave_and_sends_nothing_for_copies() -> None:
    plain, offloaded = pair("v-half", 4, 8)
    for rank in range(4):
        plan, without = rank_plan(offloaded, rank), rank_plan(plain, rank)
        parked = {op.microbatch for op in offloaded.rows[rank] if op.kind == "O"}
        assert parked
        leaving = {(t.op.kind, t.op.microbatch, t.op.chunk) for t in plan.tasks if t.is_offloaded}
        assert leaving == {(kind, m, 0) for kind in "FB" for m in parked}
        assert all(t.needs is None and t.makes is None for t in plan.tasks if t.op.kind in "OR")
        assert plan.incoming == without.incoming


def test_copies_out_of_order_or_without_their_other_half_are_refused() -> None:
    rows = build_schedule("v-half", 2, 4, offload=FIRST).rows
    away, back = (next(op for op in rows[0] if op.kind == kind) for kind in "OR")
    swapped = tuple({away: back, back: away}.get(op, op) for op in rows[0])
    lost = tuple(op for op in rows[0] if op != back)
    late = (*lost, back)
    for row, message in ((swapped, "comes back before it has left"), (lost, "stands 0 times"), (late, "deadlocks")):
        with pytest.raises(ScheduleError, match=message):
            simulate(replace(build_schedule("v-half", 2, 4), rows=(row, rows[1])))


@pytest.mark.parametrize(
    ("algorithm", "p", "offload", "message"),
    [
        *((name, 4, FIRST, "go to the host in") for name in ALGORITHMS if name not in (*OFFLOADING_V, "group-interleaved")),
        ("v-half", 4, replace(FIRST, num_chunks=2), "v-half offloads the first chunk alone, not 2"),
        ("group-interleaved", 3, FIRST, "over pairs of ranks; there are 3"),
        ("group-interleaved", 4, replace(FIRST, num_chunks=3), "there are 2 chunks a rank; offload_chunk_num is 3"),
        ("group-interleaved", 8, replace(FIRST, num_chunks=2, time=0.5), "microbatch 0 of chunk 1 would have to come back"),
    ],
)
def test_what_does_not_fit_is_refused(algorithm: Algorithm, p: int, offload: OffloadConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_schedule(algorithm, p, 8, offload=offload)


def test_a_configuration_estimates_what_it_is_not_told() -> None:
    config = PipelineConfig(algorithm="group-interleaved", num_chunks=2, offload=replace(FIRST, time=None))
    assert config.with_copy_time(4096, 4096).offload.time == pytest.approx(0.5 * 2_200_000 / (3 * 28672 * 15))
    assert config.with_copy_time(4096, 4096, "NVIDIA H100 80GB HBM3").offload.time == pytest.approx(
        0.5 * 4_400_000 / (3 * 28672 * 21)
    )
    told = replace(config, offload=FIRST)
    assert told.with_copy_time(4096, 4096) == told
    assert schedule_of(told, 4, 8).rows == build_schedule("group-interleaved", 4, 8, offload=FIRST).rows


def test_wide_models_compute_longer_for_what_they_copy() -> None:
    assert estimated_copy_time(8192, 4096) < estimated_copy_time(4096, 4096) < estimated_copy_time(4096, 1024)
