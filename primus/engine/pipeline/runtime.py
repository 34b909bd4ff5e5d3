"""`execute` runs one rank's row of a schedule table; it knows no schedule by name."""

from collections.abc import Callable

from torch import Tensor

from primus.engine.pipeline.schedules import Row

__all__ = ["execute"]


def execute(row: Row, *, forward: Callable[[int], Tensor], backward: Callable[[Tensor, bool], None]) -> None:
    """Run the operations in order.

    `forward(microbatch)` returns the scalar to differentiate; `backward(loss, is_last)` is told when no backward follows
    it in this step, so that gradients may leave for their reduction.
    """
    alive: dict[int, Tensor] = {}
    last = max((i for i, op in enumerate(row) if op.kind == "B"), default=-1)
    for i, op in enumerate(row):
        if op.kind == "F":
            alive[op.microbatch] = forward(op.microbatch)
        else:
            backward(alive.pop(op.microbatch), i == last)
