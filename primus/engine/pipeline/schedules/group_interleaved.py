"""Interleaving in small groups ("PipeOffload", arXiv 2503.01328): groups of q microbatches walk through the chunks of all
ranks, and others start before they are through. Small groups hold fewer activations in long pipelines, for more bubble.

Every rank repeats forward, backward, weight gradient in slots of one operation each, a slot later than the rank before. The
slots give the order of a rank's operations; when they run follows from their inputs.
"""

from math import gcd

from primus.engine.pipeline.schedules.table import Op, Row, Schedule

__all__ = ["group_interleaved"]


def group_interleaved(num_ranks: int, num_microbatches: int, num_chunks: int, group_size: int | None = None) -> Schedule:
    """Return the schedule of groups of `group_size` microbatches: by default, and at most, as many as ranks."""
    group = min(group_size or num_ranks, num_ranks)
    forwards = _starts(num_ranks, num_microbatches, num_chunks, group)
    return Schedule(
        algorithm="group-interleaved",
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        placement="interleaved" if num_chunks > 1 else "linear",
        splits_backward=True,
        rows=tuple(_row(forwards, num_chunks, 3 * (num_ranks - 1 - rank) + 1) for rank in range(num_ranks)),
    )


def _starts(num_ranks: int, num_microbatches: int, num_chunks: int, group: int) -> dict[tuple[int, int], int]:
    """Return the slots of forwards on the first rank, by chunk and microbatch.

    A group reaches its next chunk after whole groups of at least half as many microbatches as ranks, three slots each. On the
    way through all ranks a forward needs p slots and a backward 2p-1, and the two together have time enough: what
    comes too late shifts whole ranks, and no order. Chunks that would meet in a slot are a group apart.
    """
    ahead = -(-((num_ranks + 1) // 2) // group)
    round_of = num_chunks // gcd(num_chunks, ahead)
    return {
        (chunk, microbatch): 3
        * (group * (ahead * chunk + chunk // round_of + num_chunks * (microbatch // group)) + microbatch % group)
        for chunk in range(num_chunks)
        for microbatch in range(num_microbatches)
    }


def _row(forwards: dict[tuple[int, int], int], num_chunks: int, wait: int) -> Row:
    """Return a rank's operations; its first backward is `wait` slots after its first forward of the last chunk."""
    last, wait = num_chunks - 1, forwards[num_chunks - 1, 0] + wait
    slots = {Op("F", microbatch, chunk): slot for (chunk, microbatch), slot in forwards.items()}
    slots |= {Op("B", microbatch, last - chunk): slot + wait for (chunk, microbatch), slot in forwards.items()}
    slots |= {Op("W", op.microbatch, op.chunk): slot + 1 for op, slot in slots.items() if op.kind == "B"}
    return tuple(sorted(slots, key=slots.__getitem__))
