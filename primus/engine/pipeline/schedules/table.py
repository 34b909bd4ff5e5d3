"""A pipeline schedule as data: for each rank the operations of one step, in order.

`one_stage` is the schedule of a run without pipelining; it is an ordinary table, so that no second step function exists.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Op", "Row", "one_stage"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one microbatch: `F` forward, `B` backward."""

    kind: Literal["F", "B"]
    microbatch: int


Row = tuple[Op, ...]


def one_stage(num_microbatches: int) -> Row:
    """Return the row of the only rank: each microbatch forward, then backward, so that one is alive at a time."""
    return tuple(Op(kind, m) for m in range(num_microbatches) for kind in ("F", "B"))
