"""One forward, one backward: a warm-up of forwards, then backwards and forwards in turn, so that each rank holds no more
activations than it needs to keep the next ones busy. With p ranks and m microbatches:

- `one_f_one_b` (PipeDream-Flush, arXiv 2006.09503): bubble of (p-1)/(m+p-1), rank r holds p-r microbatches
- `interleaved` (arXiv 2104.04473): v chunks a rank divide the bubble by v, for more activations and traffic
- `sequence_split` (Seq1F1B, arXiv 2406.03488): k slices of each sequence divide bubble and activations by k
"""

from collections.abc import Sequence

from primus.engine.pipeline.schedules.table import Op, Row, Schedule
from primus.errors import InputError

__all__ = ["interleaved", "one_f_one_b", "sequence_split"]


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return 1F1B over one stage a rank."""
    return Schedule(
        algorithm="1f1b",
        num_microbatches=num_microbatches,
        rows=tuple(warmed_up(*_units(num_microbatches, 1), num_ranks - 1 - rank) for rank in range(num_ranks)),
    )


def sequence_split(num_ranks: int, num_microbatches: int, num_slices: int) -> Schedule:
    """Return 1F1B over slices of sequences: a slice attends to those before it, so backwards take them in reverse."""
    forwards, backwards = _units(num_microbatches, num_slices)
    return Schedule(
        algorithm="seq1f1b",
        num_microbatches=num_microbatches,
        num_slices=num_slices,
        rows=tuple(warmed_up(forwards, backwards, num_ranks - 1 - rank + num_slices - 1) for rank in range(num_ranks)),
    )


def interleaved(num_ranks: int, num_microbatches: int, num_chunks: int, group_size: int | None = None) -> Schedule:
    """Return interleaved 1F1B; groups of `group_size` microbatches (by default as many as ranks) walk through all chunks.

    InputError unless p <= group_size <= m and the last group is whole or has p microbatches at least.
    """
    p, m, v, g = num_ranks, num_microbatches, num_chunks, group_size or num_ranks
    if not p <= g <= m or 0 < m % g < p:
        raise InputError(
            f"interleaved 1F1B over {p} ranks needs groups of {p} to {m} microbatches and a last group that is whole "
            f"or has {p} at least; groups of {g} leave {m % g} of {m}. Change microbatch_group_size_per_vp_stage or "
            "global_batch_size."
        )
    order = [
        (microbatch, chunk) for first in range(0, m, g) for chunk in range(v) for microbatch in range(first, min(first + g, m))
    ]
    forwards = [Op("F", microbatch, chunk) for microbatch, chunk in order]
    backwards = [Op("B", microbatch, v - 1 - chunk) for microbatch, chunk in order]
    return Schedule(
        algorithm="1f1b-interleaved",
        num_microbatches=m,
        num_chunks=v,
        placement="interleaved" if v > 1 else "linear",
        rows=tuple(warmed_up(forwards, backwards, 2 * (p - 1 - rank) + (v - 1) * g) for rank in range(p)),
    )


def warmed_up(forwards: Sequence[Op], backwards: Sequence[Op], warmup: int) -> Row:
    """Return `warmup` forwards, then forward and backward in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    steady = [op for pair in zip(forwards[warmup:], backwards, strict=False) for op in pair]
    return (*forwards[:warmup], *steady, *backwards[len(forwards) - warmup :])


def _units(num_microbatches: int, num_slices: int) -> tuple[list[Op], list[Op]]:
    slices = range(num_slices)
    forwards = [Op("F", m, slice=q) for m in range(num_microbatches) for q in slices]
    return forwards, [Op("B", m, slice=q) for m in range(num_microbatches) for q in reversed(slices)]
