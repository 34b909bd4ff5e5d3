"""V-Half and V-Min ("Pipeline Parallelism with Controllable Memory", arXiv 2405.15362): two chunks a rank in a V, and about
half or a third of 1F1B's activations, for some bubble.

A building block gives the slots of one microbatch (a slot is the time of one operation), repeated every six slots without
collisions. Weight gradients fill free slots; then every operation moves to the earliest slot that its inputs and the peak of
the repeated blocks allow.
"""

from collections import deque
from collections.abc import Iterator
from typing import Literal

from primus.engine.pipeline.schedules.table import Kind, Op, Schedule

__all__ = ["v_half", "v_min"]

_PERIOD = 6
_BLOCK: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("B", 1), ("B", 0))
"""Operations of a building block, in the order of its slots."""
_CHANGE: dict[Kind, int] = {"F": 1, "B": 0, "W": -1}
"""What an operation does to the number of live activations."""
_Phase = Literal["warm-up", "steady", "cool-down"]


def v_half(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return V-Half: floor(p/2) + 1 microbatches a rank at most."""
    p, delta = num_ranks, 3 if num_ranks % 2 == 0 else 0
    blocks = [(2 * r, 3 * p - r - 2, 3 * p + delta + 2 * r - 1, 6 * p + delta - r - 2) for r in range(p)]
    return _squeezed("v-half", blocks, num_microbatches)


def v_min(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return V-Min: floor((p+1)/3) + 1 microbatches a rank at most."""
    p, delta = num_ranks, 2 if num_ranks % 3 == 0 else 0
    blocks = [(r, 2 * p - r - 1, 2 * p + delta + r, 4 * p + delta - r - 1) for r in range(p)]
    return _squeezed("v-min", blocks, num_microbatches)


def _squeezed(algorithm: str, blocks: list[tuple[int, int, int, int]], num_microbatches: int) -> Schedule:
    grid = _Grid(blocks, num_microbatches)
    grid.squeeze()
    grid.cool_down()
    return Schedule(
        algorithm=algorithm,
        num_microbatches=num_microbatches,
        num_chunks=2,
        placement="fold",
        splits_backward=True,
        rows=tuple(tuple(op for _, op in sorted(row.items())) for row in grid.rows),
    )


class _Grid:
    """Operations of all ranks by slot, and where each stands."""

    def __init__(self, blocks: list[tuple[int, int, int, int]], num_microbatches: int) -> None:
        """`blocks` holds the slots of F.0, F.1, B.1 and B.0 of microbatch 0, by rank."""
        self.m = num_microbatches
        self.rows: list[dict[int, Op]] = [{} for _ in blocks]
        self.slot: dict[tuple[int, Op], int] = {}
        self._phase: dict[tuple[int, Op], _Phase] = {}
        for rank, block in enumerate(blocks):
            for microbatch in range(num_microbatches):
                for (kind, chunk), slot in zip(_BLOCK, block, strict=True):
                    self._put(rank, Op(kind, microbatch, chunk), slot + _PERIOD * microbatch)
            self._add_weight_gradients(rank)
            self._name_phases(rank)

    def squeeze(self) -> None:
        """Move operations to earlier slots without raising the peak of any rank above the highest of all."""
        alive = [self._alive(row) for row in self.rows]
        peak = max(max(each) for each in alive)
        for slot, rank, op in self._in_time_order():
            counts, change = alive[rank], _CHANGE[op.kind]
            earliest = self._earliest(rank, op)
            first = slot
            while first > earliest and counts[first - 1] + change <= peak:
                first -= 1
            self._move(rank, op, first)
            for between in range(self.slot[rank, op], slot):
                counts[between] += change

    def cool_down(self) -> None:
        """Move what follows a rank's last forward as early as its inputs allow, weight gradients last."""
        late: list[tuple[int, int, Op]] = []
        for slot, rank, op in self._in_time_order():
            if op.kind == "W" and self._phase[rank, op] == "cool-down":
                late.append((slot, rank, op))
                del self.rows[rank][slot], self.slot[rank, op]
        for _, rank, op in self._in_time_order():
            if self._phase[rank, op] == "cool-down":
                self._move(rank, op, self._earliest(rank, op))
        for _, rank, op in late:
            self._put(rank, op, self._free_from(rank, self._earliest(rank, op)))

    def _add_weight_gradients(self, rank: int) -> None:
        waiting: deque[Op] = deque()
        slot, left = 0, 2 * self.m
        while left:
            op = self.rows[rank].get(slot)
            if op is None and waiting:
                self._put(rank, waiting.popleft(), slot)
                left -= 1
            elif op is not None and op.kind == "B":
                waiting.append(Op("W", op.microbatch, op.chunk))
            slot += 1

    def _name_phases(self, rank: int) -> None:
        phase: _Phase = "warm-up"
        for _, op in sorted(self.rows[rank].items()):
            self._phase[rank, op] = phase
            if op == Op("B", 0, 0):
                phase = "steady"
            if op == Op("F", self.m - 1, 1):
                phase = "cool-down"

    def _in_time_order(self) -> list[tuple[int, int, Op]]:
        return sorted(((slot, rank, op) for (rank, op), slot in self.slot.items()), key=lambda each: each[:2])

    def _earliest(self, rank: int, op: Op) -> int:
        """Return the first slot in which an operation has what it needs, and that of its kind and chunk before it is over."""
        return max((self.slot[need] + 1 for need in self._needs(rank, op)), default=0)

    def _needs(self, rank: int, op: Op) -> Iterator[tuple[int, Op]]:
        last = len(self.rows) - 1
        if op.microbatch:
            yield rank, Op(op.kind, op.microbatch - 1, op.chunk)
        if op.kind == "W":
            yield rank, Op("B", op.microbatch, op.chunk)
            return
        if op.kind == "B":
            yield rank, Op("F", op.microbatch, op.chunk)
        goes_up = (op.kind == "F") == (op.chunk == 0)  # the input comes from the rank before
        if goes_up and rank > 0:
            yield rank - 1, op
        elif not goes_up and rank < last:
            yield rank + 1, op
        elif not goes_up:
            yield rank, Op(op.kind, op.microbatch, 1 - op.chunk)

    def _move(self, rank: int, op: Op, earliest: int) -> None:
        target = self._free_from(rank, earliest)
        if target < self.slot[rank, op]:
            del self.rows[rank][self.slot[rank, op]]
            self._put(rank, op, target)

    def _free_from(self, rank: int, slot: int) -> int:
        while slot in self.rows[rank]:
            slot += 1
        return slot

    def _put(self, rank: int, op: Op, slot: int) -> None:
        self.rows[rank][slot] = op
        self.slot[rank, op] = slot

    @staticmethod
    def _alive(row: dict[int, Op]) -> list[int]:
        """Return how many activations are alive after each slot."""
        counts, alive = [], 0
        for slot in range(max(row) + 1):
            alive += _CHANGE[row[slot].kind] if slot in row else 0
            counts.append(alive)
        return counts
