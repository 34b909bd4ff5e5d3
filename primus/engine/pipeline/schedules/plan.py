"""`rank_plan`: one rank's row of a schedule with what each operation receives, from whom, and where its result goes.

A channel is a sender and a receiver. Messages leave in the order in which the sender's row makes them, and the receiver takes
them in that order whatever it needs first, so a channel needs no labels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from primus.engine.pipeline.schedules.table import Kind, Op, Row, Schedule

__all__ = ["Message", "RankPlan", "Task", "rank_plan"]


@dataclass(frozen=True, slots=True)
class Message:
    """Hidden states that a forward made (`F`), or their gradient that a backward made (`B`)."""

    kind: Kind
    stage: int
    """The stage that it is for."""
    microbatch: int
    slice: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One operation of a rank."""

    op: Op
    needs: Message | None
    """What it starts from; None at the ends of the model, for weight gradients and copies."""
    source: int | None
    """Rank that sends `needs`; None: this rank made it, or there is nothing."""
    makes: Message | None
    """What it makes for another stage; None at the ends of the model."""
    target: int | None
    """Rank that gets `makes`; None: this rank keeps it, or there is nothing."""
    is_last: bool
    """The last of its kind on its chunk: gradients of this kind are complete after it."""
    is_offloaded: bool
    """A forward whose activations go to the host, or the backward that needs them."""
    reduces: tuple[int, ...]
    """Chunks whose gradients all stages start to reduce about now: after this task."""
    gathers: tuple[int, ...]
    """Chunks whose weights all stages start to gather about now: before this task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """One step of one rank."""

    tasks: tuple[Task, ...]
    incoming: Mapping[int, tuple[Message, ...]]
    """By sender, in the order of its sends."""
    splits_backward: bool
    num_chunks: int


def rank_plan(schedule: Schedule, rank: int) -> RankPlan:
    """Return the plan of a rank."""
    tasks = tuple(_tasks(schedule, rank))
    senders = dict.fromkeys(task.source for task in tasks if task.source is not None)
    incoming = {sender: tuple(t.makes for t in _tasks(schedule, sender) if t.target == rank and t.makes) for sender in senders}
    return RankPlan(tasks=tasks, incoming=incoming, splits_backward=schedule.splits_backward, num_chunks=schedule.num_chunks)


def _tasks(schedule: Schedule, rank: int) -> Iterator[Task]:
    row = schedule.rows[rank]
    last = {(op.kind, op.chunk): i for i, op in enumerate(row)}
    offloaded = {replace(op, kind=kind) for op in row if op.kind == "O" for kind in ("F", "B")}
    reduces, gathers = list(_reductions(row, rank)), list(_gathers(row, rank))
    for i, op in enumerate(row):
        stage = schedule.stage(rank, op.chunk)
        before, after = (stage - 1, stage + 1) if op.kind == "F" else (stage + 1, stage - 1)
        needs = Message(op.kind, stage, op.microbatch, op.slice) if _is_linked(schedule, op, before) else None
        makes = Message(op.kind, after, op.microbatch, op.slice) if _is_linked(schedule, op, after) else None
        yield Task(
            op=op,
            needs=needs,
            source=_other(rank, schedule.rank_of(before)) if needs else None,
            makes=makes,
            target=_other(rank, schedule.rank_of(after)) if makes else None,
            is_last=last[op.kind, op.chunk] == i,
            is_offloaded=op in offloaded,
            reduces=tuple(chunk for chunk, at in reduces if at == i),
            gathers=tuple(chunk for chunk, at in gathers if at == i),
        )


def _reductions(row: Row, rank: int) -> Iterator[tuple[int, int]]:
    """Yield each chunk with the place in the row where its reduction is due.

    Rank r completes a chunk about r gradient operations before the first rank does, and waits for so many; where the row ends
    before that, the step's end is the time.
    """
    gradients = [i for i, op in enumerate(row) if op.kind in ("B", "W")]
    complete = {row[i].chunk: number for number, i in enumerate(gradients)}
    for chunk, number in complete.items():
        if number + rank < len(gradients):
            yield chunk, gradients[number + rank]


def _gathers(row: Row, rank: int) -> Iterator[tuple[int, int]]:
    """Yield each chunk from the third on with the place where its gather is due: when the chunk before it is first run.

    Rank r runs a chunk about r forwards after the first rank did, and starts so much earlier.
    """
    forwards = [i for i, op in enumerate(row) if op.kind == "F"]
    first = {row[i].chunk: number for number, i in reversed(list(enumerate(forwards)))}
    for chunk, number in first.items():
        if chunk > 0 and chunk + 1 in first:
            yield chunk + 1, forwards[max(0, number - rank)]


def _is_linked(schedule: Schedule, op: Op, stage: int) -> bool:
    return op.kind in ("F", "B") and 0 <= stage < schedule.num_stages


def _other(rank: int, other: int) -> int | None:
    return None if other == rank else other
