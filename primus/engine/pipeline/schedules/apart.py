"""Whole backwards taken apart: the input gradient goes on to the stage before, and the weight gradients follow at once.

The bubble of 1F1B over p ranks shrinks from (p-1)(F+B+W) to (p-1)(F+B): the stages before wait for input gradients alone. It
costs no memory, since each W comes right after its B.
"""

from dataclasses import replace

from primus.engine.pipeline.schedules.table import Op, Schedule

__all__ = ["with_weight_gradients_apart"]


def with_weight_gradients_apart(schedule: Schedule) -> Schedule:
    """Return the schedule with a `W` behind each `B`; one that has them already stays as it is."""
    if schedule.splits_backward:
        return schedule
    rows = tuple(tuple(part for op in row for part in _parts(op)) for row in schedule.rows)
    return replace(schedule, rows=rows, splits_backward=True)


def _parts(op: Op) -> tuple[Op, ...]:
    return (op, replace(op, kind="W")) if op.kind == "B" else (op,)
