"""The automatic zero-bubble scheduler of arXiv 2401.10241, section 3: a greedy list under a memory limit.

It plans with the costs of each stage and keeps the best of eight variants. A limit of p microbatches gives ZB-H1 at equal
costs, 2p-1 gives ZB-H2, whose ranks never wait once they have begun; without a limit the first rank runs far ahead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

from primus.engine.pipeline.schedules.simulate import Costs
from primus.engine.pipeline.schedules.table import Kind, Op, Schedule
from primus.errors import InputError

__all__ = ["zb_heuristic"]

_KINDS: tuple[Kind, ...] = ("F", "B", "W")


def zb_heuristic(
    num_ranks: int, num_microbatches: int, costs: Costs | None = None, max_memory: float | Sequence[float] | None = None
) -> Schedule:
    """Return the automatic schedule. `max_memory` limits the microbatches a rank holds, one number or one a rank.

    InputError if a limit is below one microbatch.
    """
    p = num_ranks
    limits = [max_memory or num_microbatches] * p if not isinstance(max_memory, Sequence) else list(max_memory)
    if min(limits) < 1:
        raise InputError(f"pp_max_mem {min(limits):g} is below one microbatch, so that no rank could run at all")
    costs = costs or Costs(transfer=0.001)
    best: _Plan | None = None
    for flags in product((True, False), repeat=3):
        plan = _Plan(p, num_microbatches, costs, limits, *flags)
        plan.build()
        if best is None or plan.score < best.score:
            best = plan
    assert best is not None
    return Schedule(
        algorithm="zero-bubble-heuristic",
        num_microbatches=num_microbatches,
        splits_backward=True,
        rows=tuple(tuple(stage.ops) for stage in best.stages),
    )


@dataclass(slots=True)
class _Stage:
    """State of a rank while the list grows."""

    limit: float
    cost: dict[Kind, float]
    clock: float = 0.0
    bubble: float = 0.0
    """Waiting so far, not counting that before the first forward."""
    first: float = 0.0
    """Start of the first forward."""
    done: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    ends: dict[Kind, list[float]] = field(default_factory=lambda: {kind: [] for kind in _KINDS})
    ops: list[Op] = field(default_factory=list)

    @property
    def alive(self) -> int:
        return self.done["F"] - self.done["W"]

    @property
    def pending(self) -> int:
        """Weight gradients that could run now."""
        return self.done["B"] - self.done["W"]


class _Plan:
    """One variant of the greedy list."""

    def __init__(
        self,
        num_ranks: int,
        num_microbatches: int,
        costs: Costs,
        limits: Sequence[float],
        allow_bubble_before_first_b: bool,
        prioritize_b: bool,
        no_bubble_greedy: bool,
    ) -> None:
        self.m, self.transfer = num_microbatches, costs.transfer
        self.allow_bubble, self.prioritize_b, self.greedy = allow_bubble_before_first_b, prioritize_b, no_bubble_greedy
        self.stages = [
            _Stage(limits[j], {kind: costs.of(kind, j, splits_backward=True) for kind in _KINDS}) for j in range(num_ranks)
        ]

    @property
    def score(self) -> float:
        """Longest stay of a rank from its first forward to its last weight gradient."""
        return max(stage.clock - stage.first for stage in self.stages)

    def build(self) -> None:
        """Fill all rows."""
        self._start()
        for _ in range(1, self.m):
            for j in self._stages_with_forward():
                stage = self.stages[j]
                while stage.alive + 1 > stage.limit:
                    self._put("W", j)
                self._fill(j, "F")
                self._put("F", j)
            for j in reversed(range(len(self.stages))):
                if j == 0 and self.stages[0].done["F"] == self.m:
                    self._put_pending(0)
                self._fill(j, "B")
                self._put("B", j)
        for j in range(len(self.stages)):
            self._put_pending(j)

    def _start(self) -> None:
        """Run microbatch 0 there and back, with as many further forwards as fit meanwhile."""
        p = len(self.stages)
        for j in range(p):
            self._put("F", j)
        extra = self._extra_forwards()
        for j in range(p):
            while j > 0 and 0 < extra[j] >= extra[j - 1] and 1 + extra[j] < self.m:
                extra[j] -= 1
            for _ in range(extra[j]):
                self._put("F", j)
        for j in reversed(range(p)):
            self._put("B", j)

    def _extra_forwards(self) -> list[int]:
        """Return how many forwards fit on each stage until its first backward's gradient arrives."""
        extra = [0] * len(self.stages)
        last = self.stages[-1]
        back = last.clock + last.cost["B"]
        for j in reversed(range(len(self.stages) - 1)):
            stage, arrival = self.stages[j], back + self.transfer
            clock = stage.clock
            # With a bubble allowed the forwards must end in time, else they must begin in time.
            latest = arrival - stage.cost["F"] if self.allow_bubble else math.nextafter(arrival, 0.0)
            while clock <= latest and 1 + extra[j] < self.m and 2 + extra[j] <= stage.limit:
                extra[j] += 1
                clock += stage.cost["F"]
            back = max(arrival, clock) + stage.cost["B"]
        return extra

    def _stages_with_forward(self) -> list[int]:
        """Return which stages take a forward in this round: none without its next one, none that would hold a backward up."""
        p = len(self.stages)
        takes = [stage.done["F"] < self.m for stage in self.stages]
        if self.prioritize_b:
            for j in range(p - 1):
                if self.stages[j].done["F"] >= self.stages[j + 1].done["F"] + 2 and self._delays_backward(j):
                    takes[j] = False
        for j in reversed(range(p - 1)):
            takes[j] = takes[j] and (takes[j + 1] or self.stages[j + 1].done["F"] == self.m)
        return [j for j in range(p) if takes[j]]

    def _delays_backward(self, j: int) -> bool:
        stage, following = self.stages[j], self.stages[j + 1]
        arrival = following.clock + following.cost["F"] + following.cost["B"] + self.transfer
        if stage.clock >= arrival:
            return True
        forced = max(0.0, stage.alive + 1 - stage.limit) * stage.cost["W"]
        if stage.clock + stage.cost["F"] + forced <= arrival:
            return False
        return arrival - stage.clock <= self._allowance(stage)

    def _fill(self, j: int, kind: Kind) -> None:
        """Put weight gradients into the wait for the next operation of a kind."""
        stage, arrival = self.stages[j], self._arrival(kind, j)
        while stage.pending and stage.clock + stage.cost["W"] <= arrival:
            self._put("W", j)
        gap = arrival - stage.clock
        if stage.pending and gap > 0 and (self.greedy or gap > self._allowance(stage)):
            self._put("W", j)

    def _allowance(self, stage: _Stage) -> float:
        """Return how much longer a stage may wait without being the one that waits most."""
        return max(each.bubble for each in self.stages) - stage.bubble

    def _put_pending(self, j: int) -> None:
        while self.stages[j].pending:
            self._put("W", j)

    def _put(self, kind: Kind, j: int) -> None:
        stage = self.stages[j]
        start = max(stage.clock, self._arrival(kind, j))
        if stage.ops:
            stage.bubble += start - stage.clock
        else:
            stage.first = start
        stage.clock = start + stage.cost[kind]
        stage.ops.append(Op(kind, stage.done[kind]))
        stage.ends[kind].append(stage.clock)
        stage.done[kind] += 1

    def _arrival(self, kind: Kind, j: int) -> float:
        """Return when the next operation of a kind has what it needs."""
        microbatch = self.stages[j].done[kind]
        if kind == "F" and j > 0:
            return self.stages[j - 1].ends["F"][microbatch] + self.transfer
        if kind == "B" and j < len(self.stages) - 1:
            return self.stages[j + 1].ends["B"][microbatch] + self.transfer
        return 0.0
