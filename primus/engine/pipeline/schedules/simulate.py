"""`simulate` runs a schedule on paper: when each operation starts and ends, what each rank waits and holds.

Ranks run their rows strictly in order, and an operation starts when its rank is free and what it needs has arrived:
F(g, i) after F(g-1, i); B(g, i) after F(g, i) and B(g+1, i); W(g, i) after B(g, i); of a sequence's slices, forwards in order
and backwards in reverse. A copy to the host starts after its F and ends before its O, one back starts with its R and ends
before its B; a rank's copies one way follow one another. Running it is also the proof that a schedule cannot deadlock.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from primus.engine.pipeline.schedules.table import Kind, Op, Schedule

__all__ = ["Costs", "ScheduleError", "Simulation", "peak_activations", "simulate"]

Key = tuple[Kind, int, int, int]
"""Kind, stage, microbatch, slice."""


class ScheduleError(ValueError):
    """A table is no schedule: an operation is missing, stands twice, or waits for one that waits for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Time of an operation on a chunk, one number for all ranks or one each, and of transfers."""

    forward: float | tuple[float, ...] = 1.0
    input_grad: float | tuple[float, ...] = 1.0
    weight_grad: float | tuple[float, ...] = 1.0
    transfer: float = 0.0
    """Between ranks."""
    copy: float = 0.0
    """Of a chunk's activations to the host, or back."""

    def of(self, kind: Kind, rank: int, *, splits_backward: bool) -> float:
        """Return the time of an operation; an unsplit backward is both gradients."""
        forward, input_grad, weight_grad = (
            each[rank] if isinstance(each, tuple) else each for each in (self.forward, self.input_grad, self.weight_grad)
        )
        return {"F": forward, "B": input_grad + (0.0 if splits_backward else weight_grad), "W": weight_grad}.get(kind, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What a step takes."""

    times: tuple[tuple[tuple[float, float], ...], ...]
    """Start and end of each operation, by rank and place in its row."""
    makespan: float
    busy: tuple[float, ...]
    """Time of all operations of a rank."""
    bubbles: tuple[float, ...]
    """What a rank waits between its first and last operation."""
    peaks: tuple[float, ...]
    """Most activations a rank holds, in microbatches of a whole rank; a chunk's are released by its last gradient."""
    parked: tuple[float, ...]
    """Most that lie on the host for a rank, in the same unit."""

    @property
    def bubble_fraction(self) -> float:
        """Part of the step that the busiest rank waits, its start and end included."""
        return 1.0 - max(self.busy) / self.makespan


def simulate(schedule: Schedule, costs: Costs | None = None) -> Simulation:
    """Return times, waits and peaks; ScheduleError if the table is incomplete or cannot be run to its end."""
    costs = costs or Costs()
    _check_complete(schedule)
    parked = {_key(schedule, rank, op) for rank, row in enumerate(schedule.rows) for op in row if op.kind == "O"}
    done = _Done(schedule, costs.copy, parked)
    times: list[list[tuple[float, float]]] = [[] for _ in schedule.rows]
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, row in enumerate(schedule.rows):
            while len(times[rank]) < len(row):
                op = row[len(times[rank])]
                start = _start(schedule, rank, op, done, costs.transfer)
                if start is None:
                    break
                start = max(start, times[rank][-1][1] if times[rank] else 0.0)
                end = start + costs.of(op.kind, rank, splits_backward=schedule.splits_backward)
                times[rank].append((start, end))
                done.add(rank, op, end)
                is_moving = True
    stuck = [f"rank {rank} at {row[len(times[rank])]}" for rank, row in enumerate(schedule.rows) if len(times[rank]) < len(row)]
    if stuck:
        raise ScheduleError(f"{schedule.algorithm} deadlocks: {', '.join(stuck)}")
    return _summary(schedule, times)


def _summary(schedule: Schedule, times: list[list[tuple[float, float]]]) -> Simulation:
    busy = tuple(sum(end - start for start, end in row) for row in times)
    return Simulation(
        times=tuple(tuple(row) for row in times),
        makespan=max(row[-1][1] for row in times),
        busy=busy,
        bubbles=tuple(row[-1][1] - row[0][0] - b for row, b in zip(times, busy, strict=True)),
        peaks=tuple(peak_activations(schedule, rank) for rank in range(schedule.num_ranks)),
        parked=tuple(_peak(schedule, rank, more="O", less="R") for rank in range(schedule.num_ranks)),
    )


def peak_activations(schedule: Schedule, rank: int) -> float:
    """Return the most activations that a rank holds, in microbatches of the whole rank."""
    return _peak(schedule, rank, more="FR", less="OW" if schedule.splits_backward else "OB")


def _peak(schedule: Schedule, rank: int, *, more: str, less: str) -> float:
    alive = peak = 0
    for op in schedule.rows[rank]:
        alive += (op.kind in more) - (op.kind in less)
        peak = max(peak, alive)
    return peak / (schedule.num_chunks * schedule.num_slices)


@dataclass(slots=True)
class _Done:
    """What has ended, and the links to the host."""

    schedule: Schedule
    copy: float
    parked: set[Key]
    """Every `O`."""
    ends: dict[Key, tuple[float, int]] = field(default_factory=dict)
    """End and rank of operations; of `O` and `R` the end of the copy."""
    free: dict[tuple[int, Kind], float] = field(default_factory=dict)
    """When a rank's link is free again, by kind of copy."""

    def add(self, rank: int, op: Op, end: float) -> None:
        """Note the end of an operation."""
        if op.kind == "O":
            return
        key = _key(self.schedule, rank, op)
        self.ends[key] = (self._copied(rank, "R", end) if op.kind == "R" else end, rank)
        save: Key = ("O", *key[1:])
        if op.kind == "F" and save in self.parked:
            self.ends[save] = (self._copied(rank, "O", end), rank)

    def _copied(self, rank: int, kind: Kind, start: float) -> float:
        self.free[rank, kind] = max(start, self.free.get((rank, kind), 0.0)) + self.copy
        return self.free[rank, kind]


def _start(schedule: Schedule, rank: int, op: Op, done: _Done, transfer: float) -> float | None:
    """Return when what `op` needs has arrived; None if some of it is not done."""
    start = 0.0
    for need in _needs(schedule, rank, op, done.parked):
        if need not in done.ends:
            return None
        end, producer = done.ends[need]
        start = max(start, end + (transfer if producer != rank else 0.0))
    return start


def _needs(schedule: Schedule, rank: int, op: Op, parked: set[Key]) -> Iterator[Key]:
    stage, last = schedule.stage(rank, op.chunk), schedule.num_stages - 1
    if op.kind == "F":
        if stage > 0:
            yield "F", stage - 1, op.microbatch, op.slice
        if op.slice > 0:
            yield "F", stage, op.microbatch, op.slice - 1
    elif op.kind == "B":
        yield "F", stage, op.microbatch, op.slice
        if stage < last:
            yield "B", stage + 1, op.microbatch, op.slice
        if op.slice < schedule.num_slices - 1:
            yield "B", stage, op.microbatch, op.slice + 1
        if ("O", stage, op.microbatch, op.slice) in parked:
            yield "R", stage, op.microbatch, op.slice
    elif op.kind in ("O", "R"):
        yield "O", stage, op.microbatch, op.slice
    else:
        yield "B", stage, op.microbatch, op.slice


def _key(schedule: Schedule, rank: int, op: Op) -> Key:
    return op.kind, schedule.stage(rank, op.chunk), op.microbatch, op.slice


def _check_complete(schedule: Schedule) -> None:
    """Each operation of each chunk, microbatch and slice stands exactly once in its rank's row."""
    kinds: tuple[Kind, ...] = ("F", "B", "W") if schedule.splits_backward else ("F", "B")
    wanted = {
        Op(kind, m, chunk, q)
        for kind in kinds
        for m in range(schedule.num_microbatches)
        for chunk in range(schedule.num_chunks)
        for q in range(schedule.num_slices)
    }
    for rank, row in enumerate(schedule.rows):
        counts = Counter(row)
        copies = {replace(op, kind=kind) for op in row if op.kind in ("O", "R") for kind in ("O", "R")}
        wrong = [op for op in wanted | copies if counts[op] != 1] + [op for op in counts if op not in wanted | copies]
        if wrong:
            raise ScheduleError(f"{schedule.algorithm}, rank {rank}: {wrong[0]!r} stands {counts[wrong[0]]} times")
        early = [op for op in copies if op.kind == "R" and row.index(op) < row.index(replace(op, kind="O"))]
        if early:
            raise ScheduleError(f"{schedule.algorithm}, rank {rank}: {early[0]!r} comes back before it has left")
