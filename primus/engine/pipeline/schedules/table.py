"""A pipeline schedule as data: for each rank the operations of one step, in order.

A model of p*v stages lies on p ranks with v chunks each; `Placement` says which chunk is which stage:

    linear       v = 1, stage r on rank r
    interleaved  stage c*p + r is chunk c of rank r
    fold         v = 2, a V: stage r is chunk 0 of rank r, stage 2p-1-r its chunk 1
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "Op", "Placement", "Row", "Schedule", "one_stage"]

Kind = Literal["F", "B", "W"]
Placement = Literal["linear", "interleaved", "fold"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one chunk and microbatch, or on a slice of its sequence.

    `F` forward; `B` backward, or the gradient of the input alone in a schedule that splits backwards; `W` that of the weights.
    """

    kind: Kind
    microbatch: int
    chunk: int = 0
    slice: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}"


Row = tuple[Op, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """One step of all ranks."""

    algorithm: str
    num_microbatches: int
    rows: tuple[Row, ...]
    """By rank."""
    placement: Placement = "linear"
    num_chunks: int = 1
    num_slices: int = 1
    """Equal slices of each microbatch's sequence."""
    splits_backward: bool = False
    """Weight gradients are operations of their own."""

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.rows)

    @property
    def num_stages(self) -> int:
        """Stages of the model: ranks times chunks."""
        return self.num_ranks * self.num_chunks

    def stage(self, rank: int, chunk: int) -> int:
        """Return which stage of the model a chunk is."""
        if self.placement == "fold" and chunk:
            return self.num_stages - 1 - rank
        return chunk * self.num_ranks + rank


def one_stage(num_microbatches: int) -> Row:
    """Return the row of the only rank of a run without pipelining: each microbatch forward, then backward, so that one is
    alive at a time."""
    return tuple(Op(kind, m) for m in range(num_microbatches) for kind in ("F", "B"))
