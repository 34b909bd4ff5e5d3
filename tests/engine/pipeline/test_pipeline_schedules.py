"""Schedules equal Megatron-Core's and Primus' published tables, keep the papers' formulas, and always run to their end."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.pipeline.schedules import (
    ALGORITHMS,
    Algorithm,
    Costs,
    Op,
    Schedule,
    ScheduleError,
    build_schedule,
    schedule_of,
    simulate,
)
from primus.errors import InputError

DATA = Path(__file__).parents[2] / "data" / "pipeline"


def load(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text()))


def rebuilt(case: dict[str, Any]) -> tuple[Schedule, Costs]:
    """Build the schedule of a recorded case with its parameters."""
    params = case["params"]
    each = [params.get(f"pp_cost_{kind}", 1) for kind in "fbw"]
    f, b, w = (tuple(map(float, cost)) if isinstance(cost, list) else float(cost) for cost in each)
    costs = Costs(forward=f, input_grad=b, weight_grad=w, transfer=float(params.get("cost_comm", 0)))
    names = {"sequence-split 1f1b": "1f1b", "group-interleaved-1f1b": "group-interleaved"}
    schedule = build_schedule(
        names.get(case["algorithm"], case["algorithm"]),
        case["pp_size"],
        case["num_microbatches"],
        num_chunks=case["num_chunks"],
        group_size=params.get("microbatch_group_size_per_vp_stage", params.get("interleave_group_size")),
        num_slices=case["num_seq_splits"],
        costs=costs,
        max_memory=params.get("pp_max_mem"),
    )
    return schedule, costs


@pytest.mark.parametrize("name", sorted(file.stem for file in DATA.glob("*.json")))
def test_tables_equal_the_recorded_ones(name: str) -> None:
    case = load(DATA / f"{name}.json")
    schedule, _ = rebuilt(case)
    with_slice = case["num_seq_splits"] > 1
    rows = [[[op.kind, op.chunk, op.microbatch, *([op.slice] if with_slice else [])] for op in row] for row in schedule.rows]
    assert rows == case["ranks"]
    simulation = simulate(schedule)
    assert simulation.makespan == case["sim"]["makespan"]
    assert list(simulation.bubbles) == case["sim"]["bubble_in_stage_span"]
    assert list(simulation.peaks) == case["sim"]["peak_normalised_to_stage"]


def cases() -> list[tuple[Algorithm, int, int, int, int]]:
    """Return algorithm, ranks, microbatches, chunks and slices over the sizes that are promised."""
    found: list[tuple[Algorithm, int, int, int, int]] = []
    for p in (1, 2, 3, 4, 5, 8, 16):
        for m in sorted({1, 2, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p + 1, 64} - {0}):
            found += [(name, p, m, 1, 1) for name in ("1f1b", "zero-bubble", "zero-bubble-heuristic")]
            found += [(name, p, m, 2, 1) for name in ("v-half", "v-min", "1f1b-v", "zbv-formatted")]
            found += [("group-interleaved", p, m, v, 1) for v in (2, 3, 4)]
            found += [("1f1b", p, m, 1, k) for k in (2, 3)]
            if m % p == 0:
                found += [("1f1b-interleaved", p, m, v, 1) for v in (2, 3, 4)]
    return found


def test_every_table_is_complete_and_free_of_deadlock() -> None:
    for algorithm, p, m, v, k in cases():
        schedule = build_schedule(algorithm, p, m, num_chunks=v, num_slices=k)
        assert (schedule.num_ranks, schedule.num_chunks, schedule.num_slices) == (p, v, k)
        simulate(schedule, Costs(forward=1.0, input_grad=1.3, weight_grad=0.7, transfer=0.1))


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8])
def test_bubbles_and_peaks_follow_the_papers(p: int) -> None:
    m = 3 * p

    def step(algorithm: Algorithm, **more: Any) -> tuple[float, float]:
        simulation = simulate(build_schedule(algorithm, p, m, **more))
        return simulation.makespan - max(simulation.busy), max(simulation.peaks)

    assert step("1f1b") == (3 * (p - 1), p)
    assert step("1f1b", num_slices=2) == (3 * (p - 1), (p - 1 + 2) / 2)
    assert step("1f1b-interleaved") == (3 * (p - 1), p + (p - 1) / 2)
    assert step("zero-bubble") == (p - 1, p)
    assert step("zbv-formatted") == (p - 1, p)
    assert step("zero-bubble-heuristic", max_memory=2 * p - 1)[1] == 2 * p - 1
    assert step("v-half")[1] == p // 2 + 1
    assert step("v-min")[1] == (p + 1) // 3 + 1
    assert step("group-interleaved") == (2 * (p - 1), p)
    assert step("1f1b-v") == ({2: 4, 3: 8, 4: 15, 5: 18, 8: 33}[p], 2 * p // 3 + 1)


@pytest.mark.parametrize("p", [2, 3, 4, 5, 8, 16])
def test_groups_of_every_size_run_to_their_end(p: int) -> None:
    for m, v, group in itertools.product((1, 2 * p + 1), (2, 3, 4), range(1, p + 1)):
        simulate(build_schedule("group-interleaved", p, m, num_chunks=v, group_size=group))


def test_a_group_is_no_larger_than_the_ranks() -> None:
    large, whole = (build_schedule("group-interleaved", 4, 8, group_size=group) for group in (9, None))
    assert large.rows == whole.rows == build_schedule("group-interleaved", 4, 8, group_size=4).rows


def test_a_configuration_gives_each_interleaved_schedule_its_own_groups() -> None:
    groups = PipelineConfig(algorithm="group-interleaved", num_chunks=2, interleave_group_size=1)
    assert schedule_of(groups, 4, 8).rows == build_schedule("group-interleaved", 4, 8, group_size=1).rows
    interleaved = PipelineConfig(algorithm="1f1b-interleaved", num_chunks=2, microbatch_group_size=8, interleave_group_size=1)
    assert schedule_of(interleaved, 4, 8).rows == build_schedule("1f1b-interleaved", 4, 8, group_size=8).rows


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zb_h2_ranks_never_wait_once_begun(p: int) -> None:
    schedule = build_schedule("zero-bubble-heuristic", p, 3 * p, max_memory=2 * p - 1)
    assert max(simulate(schedule).bubbles) == 0


def test_a_memory_limit_of_p_gives_zb_h1() -> None:
    costs = Costs(forward=1000.0, input_grad=1000.0, weight_grad=1000.0, transfer=1.0)
    limited = build_schedule("zero-bubble-heuristic", 4, 8, costs=costs, max_memory=4)
    assert limited.rows == build_schedule("zero-bubble", 4, 8).rows


def test_a_table_with_a_hole_a_double_or_a_cycle_is_refused() -> None:
    good = build_schedule("1f1b", 2, 2)
    for row in ((Op("F", 0), Op("B", 0), Op("F", 1)), (*good.rows[0], Op("F", 1))):
        with pytest.raises(ScheduleError, match=r"stands [02] times"):
            simulate(Schedule(algorithm="broken", num_microbatches=2, rows=(row, good.rows[1])))
    backwards_first = (Op("B", 0), Op("F", 0), Op("F", 1), Op("B", 1))
    with pytest.raises(ScheduleError, match="deadlocks: rank 0 at B0, rank 1 at F0"):
        simulate(Schedule(algorithm="broken", num_microbatches=2, rows=(backwards_first, good.rows[1])))


@pytest.mark.parametrize(
    ("algorithm", "m", "more", "message"),
    [
        ("1f1b-interleaved", 6, {}, "groups of 4 leave 2 of 6"),
        ("1f1b-interleaved", 8, {"group_size": 3}, "needs groups of 4 to 8 microbatches"),
        ("1f1b-interleaved", 8, {"num_chunks": 1}, "needs two chunks a rank at least"),
        ("group-interleaved", 8, {"num_chunks": 1}, "needs two chunks a rank at least"),
        ("1f1b-v", 8, {"num_chunks": 4}, "has two chunks a rank, not 4"),
        ("1f1b", 8, {"num_chunks": 2}, "has one chunk a rank, not 2"),
        ("v-half", 8, {"num_chunks": 3}, "has two chunks a rank, not 3"),
        ("v-min", 8, {"num_slices": 2}, "num_seq_splits 2 goes with 1f1b alone"),
        ("zero-bubble-heuristic", 8, {"max_memory": 0.5}, "pp_max_mem 0.5 is below one microbatch"),
        ("1f1b", 0, {}, "a schedule needs a rank, a microbatch"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(algorithm: Algorithm, m: int, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_schedule(algorithm, 4, m, **more)


def test_all_names_but_two_of_the_zero_bubble_section_are_those_of_pp_algorithm() -> None:
    from primus.backends.megatron.keys import KEYS

    assert KEYS["pp_algorithm"].choices == tuple(name for name in ALGORITHMS if name not in ("1f1b-v", "group-interleaved"))
