"""`Pause`: where a rank learns whether the step before stands (post-validation, arXiv 2401.10241, section 4).

Until then it runs forwards of its first chunk, which nobody but the next rank has seen; if the step before has to be taken back
they are forgotten on all ranks and run again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from primus.engine.pipeline.schedules.table import Schedule

__all__ = ["Pause", "pause_of", "pauses"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """One rank's."""

    at: int
    """Operations of the row that stand before it."""
    sent: Mapping[int, int]
    """By sender, messages to this rank that are made before the sender's own pause."""


def pauses(schedule: Schedule) -> tuple[int, ...]:
    """Return how many operations stand before each rank's pause.

    On rank r of p, min(2(p-1-r), m-1) of m microbatches: while the word comes down from the last rank. Never more than on the
    rank before, whose messages they start from, and nothing but forwards of the first chunk.
    """
    found: list[int] = []
    for rank, row in enumerate(schedule.rows):
        most = min(2 * (schedule.num_ranks - 1 - rank), schedule.num_microbatches - 1, *found[-1:])
        others = (place for place, op in enumerate(row) if op.kind != "F" or op.chunk > 0)
        found.append(min(most, next(others, len(row))))
    return tuple(found)


def pause_of(schedule: Schedule, rank: int) -> Pause:
    """Return a rank's pause."""
    points = pauses(schedule)
    receivers = {sender: schedule.stage(sender, 0) + 1 for sender in range(schedule.num_ranks) if sender != rank}
    sent = {
        sender: points[sender]
        for sender, stage in receivers.items()
        if stage < schedule.num_stages and schedule.rank_of(stage) == rank
    }
    return Pause(at=points[rank], sent=sent)
