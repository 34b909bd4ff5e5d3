"""A pipeline schedule as data: for each rank the operations of one step, in order."""

from dataclasses import dataclass
from typing import Literal

from primus.engine.config.pipeline import Placement, rank_of_stage, stage_of

__all__ = ["Kind", "Op", "Row", "Schedule"]

Kind = Literal["F", "B", "W", "O", "R"]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation on one chunk and microbatch, or on a slice of its sequence.

    `F` forward; `B` backward, or the gradient of the input alone in a schedule that splits backwards; `W` that of the weights.
    `O` what the forward keeps has left for the host; `R` it starts to come back.
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
        return stage_of(self.placement, self.num_ranks, rank, chunk)

    def rank_of(self, stage: int) -> int:
        """Return the rank that a stage lies on."""
        return rank_of_stage(self.placement, self.num_ranks, stage)
