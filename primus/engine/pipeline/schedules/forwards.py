"""The order of an evaluation: forwards alone."""

from primus.engine.config.pipeline import Placement
from primus.engine.pipeline.schedules.table import Op, Schedule

__all__ = ["forwards"]


def forwards(placement: Placement, num_ranks: int, num_chunks: int, num_microbatches: int, num_slices: int = 1) -> Schedule:
    """Return a table of forwards: groups of as many microbatches as ranks walk through all chunks."""
    row = tuple(
        Op("F", microbatch, chunk, part)
        for first in range(0, num_microbatches, num_ranks)
        for chunk in range(num_chunks)
        for microbatch in range(first, min(first + num_ranks, num_microbatches))
        for part in range(num_slices)
    )
    return Schedule(
        algorithm="forwards",
        num_microbatches=num_microbatches,
        rows=(row,) * num_ranks,
        placement=placement,
        num_chunks=num_chunks,
        num_slices=num_slices,
    )
