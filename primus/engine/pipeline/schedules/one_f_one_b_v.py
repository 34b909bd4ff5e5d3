"""1F1B-V ("Pipeline Parallelism with Controllable Memory", arXiv 2405.15362): two chunks a rank in a V and whole backwards, for
about two thirds of 1F1B's activations.

A building block gives the slots of one microbatch: a forward takes one slot, a backward two. It is repeated every six slots,
which it fills; then every operation moves to the earliest slots that its inputs and the peak of the repeated blocks allow.
"""

from collections.abc import Iterator
from typing import NamedTuple

from primus.engine.config.pipeline import rank_of_stage
from primus.engine.pipeline.schedules.table import Kind, Op, Row, Schedule

__all__ = ["one_f_one_b_v"]

_PERIOD = 6
_LENGTH: dict[Kind, int] = {"F": 1, "B": 2}


def one_f_one_b_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return 1F1B-V: floor(2p/3) + 1 microbatches a rank at most."""
    grid = _Grid(num_ranks, num_microbatches)
    grid.squeeze()
    return Schedule(
        algorithm="1f1b-v",
        num_microbatches=num_microbatches,
        num_chunks=2,
        placement="fold",
        rows=tuple(grid.row(rank) for rank in range(num_ranks)),
    )


class _Unit(NamedTuple):
    """An operation of a stage; stages are numbered down the V and up again."""

    kind: Kind
    stage: int
    microbatch: int


def _block(num_ranks: int) -> dict[tuple[Kind, int], int]:
    """Return the first slot of each forward and backward of microbatch 0.

    Forwards go through all stages without a gap, and backwards return. The waits, three slots before every third backward (and
    one before the first if three divides p), are what keeps a rank's two forwards and two backwards apart in the period.
    """
    stages, before = 2 * num_ranks, (1 - num_ranks) % 3
    first = stages + (3 if num_ranks % 3 == 0 else 0)
    slots: dict[tuple[Kind, int], int] = {("F", stage): stage for stage in range(stages)}
    for number, stage in enumerate(reversed(range(stages))):
        slots["B", stage] = first + 2 * number + 3 * ((number + before) // 3)
    return slots


class _Grid:
    """The first slot of every operation, and what each rank does and holds in each slot."""

    def __init__(self, num_ranks: int, num_microbatches: int) -> None:
        self._ranks = num_ranks
        self._first: dict[_Unit, int] = {
            _Unit(kind, stage, microbatch): slot + _PERIOD * microbatch
            for (kind, stage), slot in _block(num_ranks).items()
            for microbatch in range(num_microbatches)
        }
        end = max(self._first.values()) + _LENGTH["B"]
        self._taken: list[set[int]] = [set() for _ in range(num_ranks)]
        self._alive = [[0] * end for _ in range(num_ranks)]
        for unit, slot in self._first.items():
            self._taken[self._rank(unit)].update(_slots(unit, slot))
            self._count(unit, slot, end)

    def squeeze(self) -> None:
        """Move operations to earlier slots without raising the peak of any rank above the highest of all."""
        peak = max(map(max, self._alive))
        for unit in sorted(self._first, key=lambda each: (self._first[each], self._rank(each))):
            self._move(unit, peak)

    def row(self, rank: int) -> Row:
        """Return a rank's operations in the order of their slots."""
        units = sorted((slot, unit) for unit, slot in self._first.items() if self._rank(unit) == rank)
        return tuple(Op(unit.kind, unit.microbatch, unit.stage // self._ranks) for _, unit in units)

    def _move(self, unit: _Unit, peak: int) -> None:
        slot, taken, alive = self._first[unit], self._taken[self._rank(unit)], self._alive[self._rank(unit)]
        earliest, target = self._earliest(unit), slot
        while target > earliest and alive[target - 1] + (unit.kind == "F") <= peak:
            target -= 1
        taken.difference_update(_slots(unit, slot))
        while not taken.isdisjoint(_slots(unit, target)):
            target += 1
        taken.update(_slots(unit, target))
        self._first[unit] = target
        self._count(unit, target, slot)

    def _count(self, unit: _Unit, slot: int, before: int) -> None:
        """Let an operation act from the end of `slot` on where it used to act from that of `before`."""
        alive, wait = self._alive[self._rank(unit)], _LENGTH[unit.kind] - 1
        for each in range(slot + wait, min(before + wait, len(alive))):
            alive[each] += 1 if unit.kind == "F" else -1

    def _earliest(self, unit: _Unit) -> int:
        """Return the first slot in which an operation has what it needs, and that of its kind and stage before it is over."""
        return max((self._first[need] + _LENGTH[need.kind] for need in self._needs(unit)), default=0)

    def _needs(self, unit: _Unit) -> Iterator[_Unit]:
        kind, stage, microbatch = unit
        if microbatch:
            yield _Unit(kind, stage, microbatch - 1)
        if kind == "B":
            yield _Unit("F", stage, microbatch)
        source = stage - 1 if kind == "F" else stage + 1
        if 0 <= source < 2 * self._ranks:
            yield _Unit(kind, source, microbatch)

    def _rank(self, unit: _Unit) -> int:
        return rank_of_stage("fold", self._ranks, unit.stage)


def _slots(unit: _Unit, first: int) -> range:
    return range(first, first + _LENGTH[unit.kind])
