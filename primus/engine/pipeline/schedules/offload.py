"""Activations that leave their rank for host memory: `with_offload` adds to a table where they do, and where they come back.

A copy to the host starts when its forward ends. `O` waits until it is over, and the device's memory is free; `R` takes memory
again and starts the copy back, for which the backward waits.

- Folded schedules: each copy runs beside one operation.
- Group-interleaved ("PipeOffload", arXiv 2503.01328): ranks 2j and 2j+1 share a link to the host and take turns on it, in
  slots of a copy's time. Rank 2j saves in even slots and its neighbour in odd ones, as early as possible; both load as late as
  possible.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, floor

from primus.engine.config.offload import OffloadConfig
from primus.engine.config.pipeline import OFFLOADING_V, Algorithm
from primus.engine.pipeline.schedules.simulate import simulate
from primus.engine.pipeline.schedules.table import Kind, Op, Row, Schedule
from primus.errors import InputError

__all__ = ["OFFLOADING", "with_offload"]

OFFLOADING: tuple[Algorithm, ...] = (*OFFLOADING_V, "group-interleaved")
"""Schedules in which activations can go to the host."""

_LEAST_STAY = 6
"""Slots between the starts of a save and of its load; what comes back sooner stays."""
_ALONE = 0.7
"""Share of a slot that a copy takes while the neighbour's link is idle."""
_LEAST_SLOT, _ROUNDING = 0.01, 1e-9
_OPERATIONS = 3
"""Forward, input gradient and weight gradient take a unit of time each."""

Times = list[tuple[float, float]]


def with_offload(schedule: Schedule, offload: OffloadConfig) -> Schedule:
    """Return the table with copies; InputError where the schedule has no place for them, or the link is too slow."""
    if schedule.algorithm in OFFLOADING_V:
        if offload.num_chunks > 1:
            raise InputError(f"{schedule.algorithm} offloads the first chunk alone, not {offload.num_chunks}")
        return replace(schedule, rows=tuple(_beside_operations(row) for row in schedule.rows))
    if schedule.algorithm != "group-interleaved":
        raise InputError(f"activations go to the host in {', '.join(OFFLOADING)}, not in {schedule.algorithm}")
    if offload.num_chunks > schedule.num_chunks:
        raise InputError(f"there are {schedule.num_chunks} chunks a rank; offload_chunk_num is {offload.num_chunks}")
    if schedule.num_ranks % 2:
        raise InputError(f"group-interleaved offloads over pairs of ranks; there are {schedule.num_ranks}")
    assert offload.time is not None, "whoever knows the device estimates it"
    return _in_turns(schedule, offload, max(_LEAST_SLOT, round(_OPERATIONS * offload.time, 2)))


def _beside_operations(row: Row) -> Row:
    """Let the copies of chunk 0 run beside the operation after the forward, and beside the one before the backward.

    Where nothing runs between the two copies, nothing would be gained, and the activations stay.
    """
    places = {op: i for i, op in enumerate(row)}
    freed: dict[int, list[Op]] = defaultdict(list)
    loaded: dict[int, list[Op]] = defaultdict(list)
    for i, op in enumerate(row):
        if op.kind == "F" and op.chunk == 0:
            after, before = i + 2, places[_as("B", op)] - 1
            if before > after:
                freed[after].append(_as("O", op))
                loaded[before].append(_as("R", op))
    return tuple(each for i, op in enumerate(row) for each in (*freed[i], *loaded[i], op))


@dataclass(slots=True)
class _Stay:
    """An activation on the host: the slots of its copies."""

    forward: Op
    save: int
    load: int


def _in_turns(schedule: Schedule, offload: OffloadConfig, slot: float) -> Schedule:
    times = _postponed(schedule)
    stays = [
        list(_stays(row, times[rank], offload, slot, _Turns(rank % 2, overlaps=offload.overlaps)))
        for rank, row in enumerate(schedule.rows)
    ]
    busy = [{slot for stay in each for slot in (stay.save, stay.load)} for each in stays]
    rows = tuple(_with_copies(row, times[rank], stays[rank], slot, busy[rank ^ 1]) for rank, row in enumerate(schedule.rows))
    return replace(schedule, rows=rows)


@dataclass(frozen=True, kw_only=False, slots=True)
class _Turns:
    """The slots of one of two neighbours."""

    parity: int
    overlaps: bool

    def saves(self, slot: int) -> bool:
        """Whether this rank may save in a slot."""
        return slot % 2 == self.parity

    def loads(self, slot: int) -> bool:
        """Whether it may load: in any slot, or in those in which it does not save."""
        return self.overlaps or slot % 2 != self.parity


def _postponed(schedule: Schedule) -> list[Times]:
    """Return when operations run, with the forwards before a rank's first backward as late as their takers allow.

    Until then fewer activations are there at once, and earlier ones have left.
    """
    times = [list(row) for row in simulate(schedule).times]
    starts = {
        (schedule.stage(rank, op.chunk), op.microbatch): times[rank][i][0]
        for rank, row in enumerate(schedule.rows)
        for i, op in enumerate(row)
        if op.kind == "F"
    }
    warm_up = [
        (times[rank][i][0], rank, i)
        for rank, row in enumerate(schedule.rows)
        for i in range(next(i for i, op in enumerate(row) if op.kind == "B"))
    ]
    for start, rank, i in sorted(warm_up, reverse=True):
        op, (_, end) = schedule.rows[rank][i], times[rank][i]
        stage, duration = schedule.stage(rank, op.chunk), end - start
        late = min(times[rank][i + 1][0], starts.get((stage + 1, op.microbatch), float("inf"))) - duration
        times[rank][i] = (late, late + duration)
        starts[stage, op.microbatch] = late
    return times


def _stays(row: Row, times: Times, offload: OffloadConfig, slot: float, turns: _Turns) -> Iterator[_Stay]:
    """Yield what goes to the host, with free slots: the first after its forward, the last before its backward.

    A load is over one backward's time before its own, so that it may be late.
    """
    places = {op: i for i, op in enumerate(row)}
    wanted = []
    for i, op in enumerate(row):
        if op.kind != "F" or op.chunk >= offload.num_chunks:
            continue
        (backward, ends) = times[places[_as("B", op)]]
        first = ceil(times[i][1] / slot - _ROUNDING)
        last = floor((backward - (ends - backward)) / slot + _ROUNDING) - 1
        first += not turns.saves(first)
        last -= not turns.loads(last)
        if last - first > _LEAST_STAY:
            wanted.append(_Stay(op, first, last))
    saves, loads = set[int](), set[int]()
    for stay in wanted:
        while stay.save in saves or not turns.saves(stay.save):
            stay.save += 1
        saves.add(stay.save)
    for stay in sorted(wanted, key=lambda each: -each.load):
        while stay.load in loads or not turns.loads(stay.load):
            stay.load -= 1
        loads.add(stay.load)
    slow = next((stay for stay in wanted if stay.load <= stay.save), None)
    if slow:
        raise InputError(
            f"copies to the host that take {offload.time:g} of a chunk's forward and gradients are too slow for "
            f"{offload.num_chunks} chunk(s) a rank: microbatch {slow.forward.microbatch} of chunk {slow.forward.chunk} would "
            "have to come back before it has left; reduce offload_chunk_num, or do without cpu_offload"
        )
    yield from wanted


def _with_copies(row: Row, times: Times, stays: list[_Stay], slot: float, busy: set[int]) -> Row:
    """Add each save's end before the first operation that starts after it, each load before the one that it runs beside."""
    freed: dict[int, list[Op]] = defaultdict(list)
    loaded: dict[int, list[Op]] = defaultdict(list)
    for stay in stays:
        left = slot * (stay.save + (1 if stay.save in busy else _ALONE))
        back = slot * (stay.load + (0 if stay.load in busy else 1 - _ALONE))
        after = next(i for i, (start, _) in enumerate(times) if start >= left - _ROUNDING)
        before = next(i for i, (_, end) in enumerate(times) if end > back + _ROUNDING)
        if before > after:
            freed[after].append(_as("O", stay.forward))
            loaded[before].append(_as("R", stay.forward))
    return tuple(each for i, op in enumerate(row) for each in (*freed[i], *loaded[i], op))


def _as(kind: Kind, op: Op) -> Op:
    return replace(op, kind=kind)
