"""How the rows of several of their tensors are the rows of one of ours.

Both ways read the same `Run`s: import copies them from theirs, a rank of a divided model only those that it holds, and export
copies them back. Nothing is computed.
"""

from dataclasses import dataclass

from primus.engine.checkpoint.hf.names import Form
from primus.engine.config.model import ModelConfig

__all__ = ["Run", "runs", "their_rows"]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that lie one after the other in ours, and evenly spaced in theirs."""

    part: int
    """Which of their tensors."""
    theirs: int
    """First row there."""
    ours: int
    """First row in our tensor."""
    length: int
    step: int = 1
    """Distance of the rows there."""

    def their_slice(self, low: int, high: int) -> slice:
        """Return where our rows from `low` to before `high` lie there."""
        start = self.theirs + (low - self.ours) * self.step
        return slice(start, start + (high - low - 1) * self.step + 1, self.step)


def runs(form: Form, rows: int, model: ModelConfig) -> list[Run]:
    """Return the runs of our tensor of `rows` rows, in its order.

    `qkv` goes by groups: the query heads of a group, its key head, its value head. `halves` are what the activation gates by,
    and what is gated; in `pairs` the rows of the two alternate.
    """
    if form == "same":
        return [Run(0, 0, 0, rows)]
    half = rows // 2
    if form == "halves":
        return [Run(0, 0, 0, half), Run(1, 0, half, half)]
    if form == "pairs":
        return [Run(0, 0, 0, half, 2), Run(0, 1, half, half, 2)]
    groups, channels = model.attention.num_query_groups, model.attention.kv_channels
    queries = model.attention.num_attention_heads // groups * channels
    step = queries + 2 * channels
    return [
        run
        for group in range(groups)
        for run in (
            Run(0, group * queries, group * step, queries),
            Run(1, group * channels, group * step + queries, channels),
            Run(2, group * channels, group * step + queries + channels, channels),
        )
    ]


def their_rows(form: Form, rows: int, model: ModelConfig) -> list[int]:
    """Return the rows of each of their tensors."""
    totals: dict[int, int] = {}
    for run in runs(form, rows, model):
        totals[run.part] = totals.get(run.part, 0) + run.length
    return [totals[part] for part in sorted(totals)]
