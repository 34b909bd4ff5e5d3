"""How gradients are gathered over microbatches and reduced over data-parallel ranks: whole on every rank, or each rank's shard.

whole               F F F | B B B                | R0 R1 R2      ZeRO 0 and 1 (arXiv 1910.02054): all ranks add up everything
whole, overlapped   F F F | B B B(R0 R1 R2)      |               and reduce it once a step
sharded             F B(R0 R1 R2) F B(R0 R1 R2)  |               ZeRO 2: a bucket has memory from its first gradient to its
                                                                 reduction, and each rank adds up its shard
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from primus.engine.parallel.buckets import Bucket, allocate, free
from primus.engine.parallel.collectives import Works, own_part, start_all_reduce_, start_reduce_scatter_, wait
from primus.engine.parallel.reduction import Reduction, Reductions
from primus.engine.parallel.slot import GradientSlot

__all__ = ["ShardedGradients", "Watcher", "WholeGradients"]

Watcher = Callable[[int, Tensor], None]
"""Called with a bucket's number and this rank's own gradients right before they are reduced."""


@dataclass(slots=True, eq=False)
class _State:
    """A bucket in the course of a step."""

    bucket: Bucket
    slots: tuple[GradientSlot, ...]
    reduction: Reduction
    waiting: int = 0
    """Parameters whose gradient is still incomplete."""
    works: Works | None = None
    """None before the reduction is launched."""


class _Gradients:
    """What both ways share: which slot lies where, and when a gradient is complete."""

    def __init__(self, reductions: Reductions) -> None:
        self._reductions = reductions
        self.watcher: Watcher | None = None
        self.is_last = True
        """The backward that runs is the last one of its step."""
        self._states: list[_State] = []
        self._state_of: dict[GradientSlot, _State] = {}

    def _register(self, bucket: Bucket, slots: dict[nn.Parameter, GradientSlot]) -> _State:
        state = _State(bucket, tuple(slots[place.param] for place in bucket.places), self._of(bucket))
        self._states.append(state)
        self._state_of.update(dict.fromkeys(state.slots, state))
        return state

    def _of(self, bucket: Bucket) -> Reduction:
        return self._reductions.of(is_expert=bucket.is_expert)

    def _arrive(self, slot: GradientSlot) -> _State:
        """Count an addition.

        A weight in two places (tied embeddings) gets two additions if one of them bypasses autograd, so their number is learned
        from the past.
        """
        state = self._state_of[slot]
        slot.arrivals += 1
        if slot.arrivals == slot.expected:
            state.waiting -= 1
        return state

    def _launch(self, state: _State) -> None:
        reduction, grad = state.reduction, state.bucket.grad
        if self.watcher is not None:
            self.watcher(state.bucket.number, grad)
        if reduction.factor_before != 1.0:
            grad.mul_(reduction.factor_before)
        if reduction.is_divided:
            state.works = start_reduce_scatter_(grad, reduction.shard_group)
        else:
            state.works = start_all_reduce_(grad, reduction.group)


class WholeGradients(_Gradients):
    """Every rank adds up all gradients of a step."""

    def __init__(self, reductions: Reductions, *, waits_for_release: bool = False) -> None:
        """With `waits_for_release` a chunk's buckets leave early only after `release`."""
        super().__init__(reductions)
        self._overlaps = any(reduction.overlaps and reduction.group.size > 1 for reduction in reductions)
        self._waits = waits_for_release
        self._released: set[int] = set()
        self._launched = 0
        """Buckets whose reduction is under way in this step: the first ones."""

    def adopt(self, bucket: Bucket, slots: dict[nn.Parameter, GradientSlot]) -> None:
        """Take a bucket in; they come in the order of their numbers."""
        self._register(bucket, slots)

    def owned(self, bucket: Bucket) -> Tensor:
        """Return where the reduced gradients of this rank's part are."""
        return own_part(bucket.grad, self._of(bucket).shard_group)

    def begin(self) -> None:
        """Start a step: forget all gradients."""
        self._launched = 0
        self._released.clear()
        for state in self._states:
            state.waiting, state.works = len(state.slots), None
            for slot in state.slots:
                slot.empty()

    def before_add(self, slot: GradientSlot) -> None:
        """Nothing: there is memory."""

    def added(self, slot: GradientSlot) -> None:
        """Let buckets leave once they are complete, in order, as collectives must whatever backwards do first on a rank.

        In the first step nothing is known of the number of additions, and nothing leaves early.
        """
        if not (self._overlaps and self.is_last):
            return
        assert self._state_of[slot].works is None, f"a gradient of {slot.name} arrived after its bucket was sent to be reduced"
        self._arrive(slot)
        self._launch_complete()

    def release(self, chunk: int) -> None:
        """Let the buckets of a chunk leave."""
        self._released.add(chunk)
        if self._overlaps:
            self._launch_complete()

    def end_backward(self) -> None:
        """Nothing: gradients stay until the step ends."""

    def reduce(self) -> None:
        """Complete the step's gradients: launch what has not left, wait, and add up what other instances have of a shard."""
        for state in self._states:
            for slot in state.slots:
                slot.fill()
                slot.expected = max(slot.expected, slot.arrivals)
        while self._launched < len(self._states):
            self._launch_next()
        works: Works = []
        for state in self._states:
            assert state.works is not None
            wait(state.works)
            if state.reduction.is_divided:
                works += start_all_reduce_(self.owned(state.bucket), state.reduction.inter_group)
        wait(works)
        for state in self._states:
            if state.reduction.factor_after != 1.0:
                self.owned(state.bucket).mul_(state.reduction.factor_after)

    def _launch_complete(self) -> None:
        while self._launched < len(self._states) and self._may_leave(self._states[self._launched]):
            self._launch_next()

    def _may_leave(self, state: _State) -> bool:
        return state.waiting == 0 and (not self._waits or state.bucket.chunk in self._released)

    def _launch_next(self) -> None:
        state = self._states[self._launched]
        self._launched += 1
        self._launch(state)


class ShardedGradients(_Gradients):
    """Every rank adds up its shard of each microbatch's reduced gradients."""

    def __init__(self, reductions: Reductions, is_deferring: Callable[[], bool]) -> None:
        """`is_deferring` tells whether a part of the present backward's gradients comes later."""
        super().__init__(reductions)
        self._is_deferring = is_deferring
        self._shards: dict[Bucket, Tensor] = {}
        self._open: set[Bucket] = set()
        """Buckets that have memory for whole gradients, and some in it."""
        self._leaving: deque[_State] = deque()
        self._filled: set[Bucket] = set()
        """Buckets whose shard holds gradients of this step."""
        self._additions: Counter[GradientSlot] = Counter()
        """In the present backward."""
        self._mixes = False
        """Some of them belong to a backward whose others come later."""

    def adopt(self, bucket: Bucket, slots: dict[nn.Parameter, GradientSlot]) -> None:
        """Take a bucket in, and its memory away."""
        for slot in self._register(bucket, slots).slots:
            slot.expected = 1  # nothing waits for a whole first backward: its gradients may be more than memory holds
        self._shards[bucket] = own_part(bucket.grad, self._of(bucket).shard_group).clone()
        free(bucket.grad)

    def owned(self, bucket: Bucket) -> Tensor:
        """Return where the reduced gradients of this rank's part are."""
        return self._shards[bucket]

    def begin(self) -> None:
        """Start a step: forget all gradients."""
        while self._leaving:
            self._receive()
        self._filled.clear()
        for state in self._states:
            self._close(state)

    def before_add(self, slot: GradientSlot) -> None:
        """Give the slot's bucket memory."""
        state = self._state_of[slot]
        if state in self._leaving:
            self._receive_all()
        if state.bucket not in self._open:
            self._open.add(state.bucket)
            state.waiting = len(state.slots)
            allocate(state.bucket.grad)
            state.bucket.zero_gaps(state.bucket.grad)

    def added(self, slot: GradientSlot) -> None:
        """Let a bucket leave once it is complete: ranks with one graph complete them in one order."""
        state = self._arrive(slot)
        self._additions[slot] += 1
        self._mixes |= self._is_deferring()
        if state.waiting == 0 and not self._is_deferring():
            self._send(state)

    def release(self, chunk: int) -> None:
        """Nothing: buckets leave in every microbatch."""

    def end_backward(self) -> None:
        """Let leave what a backward has left behind, and learn how many additions it makes."""
        if not self._mixes:
            for slot, count in self._additions.items():
                slot.expected = max(slot.expected, count)
        self._additions.clear()
        self._mixes = False
        for state in self._states:
            if state.bucket in self._open:
                self._send(state)

    def reduce(self) -> None:
        """Complete the step's gradients, and add up what other instances have of a shard."""
        self.end_backward()
        self._receive_all()
        works: Works = []
        for bucket, shard in self._shards.items():
            if bucket not in self._filled:
                shard.zero_()
            elif self._of(bucket).is_divided:
                works += start_all_reduce_(shard, self._of(bucket).inter_group)
        wait(works)

    def _send(self, state: _State) -> None:
        for slot in state.slots:
            slot.fill()
        self._launch(state)
        self._open.discard(state.bucket)
        for slot in state.slots:
            slot.empty()
        self._leaving.append(state)
        while len(self._leaving) > (1 if state.reduction.overlaps else 0):
            self._receive()

    def _receive_all(self) -> None:
        while self._leaving:
            self._receive()

    def _receive(self) -> None:
        """Add the oldest reduction that is under way to its shard."""
        state = self._leaving.popleft()
        assert state.works is not None
        wait(state.works)
        bucket, factor = state.bucket, state.reduction.factor_after
        shard, arrived = self._shards[bucket], own_part(bucket.grad, state.reduction.shard_group)
        if bucket in self._filled:
            shard.add_(arrived, alpha=factor)
        else:
            torch.mul(arrived, factor, out=shard)
        self._filled.add(bucket)
        free(bucket.grad)

    def _close(self, state: _State) -> None:
        if state.bucket in self._open:
            self._open.discard(state.bucket)
            free(state.bucket.grad)
        for slot in state.slots:
            slot.empty()
