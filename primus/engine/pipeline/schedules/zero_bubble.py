"""Zero-bubble schedules by rule (arXiv 2401.10241, 2405.15362): backwards are split, and weight gradients, which nobody waits
for, fill what would be bubbles.

- `zb_h1`: 1F1B's order and memory, a third of its bubble
- `zb_v`: two chunks a rank in a V; no bubble for equal costs, and 1F1B's memory
"""

from primus.engine.pipeline.schedules.one_f_one_b import one_f_one_b
from primus.engine.pipeline.schedules.table import Kind, Op, Row, Schedule

__all__ = ["zb_h1", "zb_v"]


def zb_h1(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return ZB-H1: rank r postpones its first weight gradient by r microbatches, so that all ranks hold p of them."""
    if num_microbatches < num_ranks:
        rows = [_few(rank == num_ranks - 1, num_microbatches) for rank in range(num_ranks)]
    else:
        rows = [_trailing(row, rank) for rank, row in enumerate(one_f_one_b(num_ranks, num_microbatches).rows)]
    return Schedule(algorithm="zero-bubble", num_microbatches=num_microbatches, splits_backward=True, rows=tuple(rows))


def _trailing(row: Row, delay: int) -> Row:
    """Add weight gradients that trail the backwards by `delay` microbatches."""
    ops: list[Op] = []
    last = sum(op.kind == "B" for op in row)
    for op in row:
        ops.append(op)
        if op.kind == "B" and op.microbatch >= delay:
            ops.append(Op("W", op.microbatch - delay))
    return (*ops, *(Op("W", m) for m in range(max(0, last - delay), last)))


def _few(is_last: bool, num_microbatches: int) -> Row:
    """With fewer microbatches than ranks there is nothing to trail."""
    all_of = range(num_microbatches)
    if is_last:
        return (*(Op(kind, m) for m in all_of for kind in ("F", "B")), *(Op("W", m) for m in all_of))
    return (*(Op("F", m) for m in all_of), *(Op(kind, m) for m in all_of for kind in ("B", "W")))


def zb_v(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return ZB-V.

    Its warm-up takes 2p-1 microbatches. A step of fewer is one of so many with the later ones left out: what remains depends on
    nothing that is missing, and keeps its order.
    """
    p, m = num_ranks, num_microbatches
    rows = (_ZBVRow(max(m, 2 * p - 1)).fill(p, rank) for rank in range(p))
    return Schedule(
        algorithm="zbv-formatted",
        num_microbatches=m,
        num_chunks=2,
        placement="fold",
        splits_backward=True,
        rows=tuple(tuple(op for op in row if op.microbatch < m) for row in rows),
    )


class _ZBVRow:
    """A row under construction: each operation takes the next microbatch of its kind and chunk."""

    def __init__(self, num_microbatches: int) -> None:
        self._m = num_microbatches
        self._next: dict[tuple[Kind, int], int] = {(kind, chunk): 0 for kind in ("F", "B", "W") for chunk in (0, 1)}
        self._ops: list[Op] = []

    def fill(self, p: int, rank: int) -> Row:
        """Return the row: warm-up, a steady part that keeps both chunks going, and a tail that leaves weight gradients last."""
        self._put(2 * (p - rank) - 1, "F0")
        self._put(rank, "F1", "F0")
        self._put(p - rank, "F1", "B1", "W1")
        while self._next["F", 1] < self._next["F", 0] or self._next["F", 0] < self._m:
            if self._next["F", 0] < self._m:
                self._put(1, "F0")
            self._put(1, "B0", "W0", "F1", "B1", "W1")
        self._put(rank, "B0", "B1")
        self._put(p - rank, "B0", "W0")
        for chunk in (1, 0):
            self._put(self._m - self._next["W", chunk], f"W{chunk}")
        return tuple(self._ops)

    def _put(self, times: int, *names: str) -> None:
        for _ in range(times):
            for name in names:
                kind: Kind = "F" if name[0] == "F" else "B" if name[0] == "B" else "W"
                chunk = int(name[1])
                self._ops.append(Op(kind, self._next[kind, chunk], chunk))
                self._next[kind, chunk] += 1
