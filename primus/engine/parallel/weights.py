"""How every rank gets the weights that others have updated: all of them after each step, or each unit when it runs.

whole              update | G2 G1 G0 | F F F | B B B
whole, overlapped  update | F(G2) F(G1) F(G0) | B B B
sharded            update | F(G0 G1 G2) | B(G2 G1 G0)      ZeRO 3 (arXiv 1910.02054), FSDP (arXiv 2304.11277): a unit's
                                                           weights have memory while it runs
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from primus.engine.parallel.buckets import Bucket, Unit, allocate, free
from primus.engine.parallel.collectives import Works, own_part, start_all_gather_, wait
from primus.engine.parallel.mesh import Group

__all__ = ["ShardedWeights", "WholeWeights"]


class WholeWeights:
    """Every rank holds all weights, and updates its part of them."""

    def __init__(self, *, overlaps: bool, waits_for_start: bool) -> None:
        """With `overlaps` a forward waits for each bucket as it needs it.

        With `waits_for_start` the chunks after the first two are gathered when `start` says so, or a forward needs them.
        """
        self._overlaps, self._waits = overlaps, overlaps and waits_for_start
        self._groups: dict[Bucket, Group] = {}
        self._works: dict[Bucket, Works] = {}
        self._stale: set[Bucket] = set()
        """Buckets whose gather is still to be started."""

    def adopt(self, bucket: Bucket, group: Group) -> None:
        """Take a bucket in whose update `group` divides; they come in the order of their numbers."""
        self._works[bucket], self._groups[bucket] = [], group

    def owned(self, bucket: Bucket) -> Tensor:
        """Return the weights of this rank's part."""
        return own_part(bucket.model, self._groups[bucket])

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """Hook into forwards that wait for weights."""
        if not self._overlaps or all(group.size == 1 for group in self._groups.values()):
            return
        bucket_of = {place.param: bucket for bucket in self._works for place in bucket.places}
        for module in modules:
            buckets = dict.fromkeys(bucket_of[p] for p in _read_by(module) if p in bucket_of)
            if buckets:
                module.register_forward_pre_hook(partial(self._await_all, tuple(buckets)))

    def updated(self, chunks: Collection[int]) -> None:
        """Gather what the ranks have updated of these chunks."""
        new = [bucket for bucket in reversed(self._works) if bucket.chunk in chunks and bucket.is_trained]
        self._stale.update(new)
        for bucket in new:
            if not self._waits or bucket.chunk < 2:
                self._start(bucket)
        if not self._overlaps:
            self.finish()

    def start(self, chunk: int) -> None:
        """Start to gather a chunk, if that is still to be done."""
        for bucket in reversed(self._works):
            if bucket.chunk == chunk:
                self._start(bucket)

    def finish(self) -> None:
        """Wait until the weights are whole."""
        self._await_all(tuple(self._works))

    def end_backward(self) -> None:
        """Nothing: weights stay."""

    def _await_all(self, buckets: tuple[Bucket, ...], *_: object) -> None:
        for bucket in buckets:
            self._start(bucket)
            wait(self._works[bucket])
            self._works[bucket] = []

    def _start(self, bucket: Bucket) -> None:
        if bucket in self._stale:
            self._stale.discard(bucket)
            self._works[bucket] = start_all_gather_(bucket.model, self._groups[bucket])


def _read_by(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield what a module's forward reads: its own parameters, and those of parts that nobody calls, since they have none."""
    yield from module.parameters(recurse=False)
    for part in module.children():
        if type(part).forward is nn.Module.forward:
            yield from _read_by(part)


class ShardedWeights:
    """Every rank holds its part of the weights, and a unit's whole ones while it runs."""

    def __init__(self, *, overlaps: bool, ahead: int) -> None:
        """With `overlaps` up to `ahead` elements are gathered before their unit runs."""
        self._overlaps, self._ahead = overlaps, ahead
        self._groups: dict[Bucket, Group] = {}
        self._shards: dict[Bucket, Tensor] = {}
        self._works: dict[Bucket, Works] = {}
        """Buckets that have memory for whole weights, with what fills it."""
        self._chunks: list[list[_Shared]] = []

    def adopt(self, bucket: Bucket, group: Group) -> None:
        """Take a bucket in that `group` divides, and its memory away."""
        self._groups[bucket] = group
        self._shards[bucket] = own_part(bucket.model, self._groups[bucket]).clone()
        free(bucket.model)

    def owned(self, bucket: Bucket) -> Tensor:
        """Return the weights of this rank's part."""
        return self._shards[bucket]

    def watch(self, chunks: Iterable[Sequence[Unit]]) -> None:
        """Hook into the forwards and backwards of the units of each chunk."""
        bucket_of = {place.param: bucket for bucket in self._shards for place in bucket.places}
        for units in chunks:
            chunk = [_Shared(unit, bucket_of, number) for number, unit in enumerate(units)]
            self._chunks.append(chunk)
            for shared in chunk:
                first, last = shared.unit.modules[0], shared.unit.modules[-1]
                first.register_forward_pre_hook(partial(self._before_forward, chunk, shared))
                last.register_forward_hook(partial(self._after_forward, chunk, shared))

    def updated(self, chunks: Collection[int]) -> None:
        """Forget whole weights from before the update."""
        self.end_backward()

    def start(self, chunk: int) -> None:
        """Nothing: weights are gathered unit by unit."""

    def finish(self) -> None:
        """Nothing: no rank holds all weights."""

    def end_backward(self) -> None:
        """Give back what was gathered in vain."""
        for chunk in self._chunks:
            for shared in chunk:
                shared.is_in_forward = shared.is_in_backward = False
        for bucket in list(self._works):
            self._release(bucket)

    def _before_forward(self, chunk: list["_Shared"], shared: "_Shared", _: nn.Module, arguments: tuple[Any, ...]) -> None:
        shared.is_in_forward = True
        self._use(chunk, shared, following=chunk[shared.number + 1 :])
        hidden = next((x for x in arguments if isinstance(x, Tensor) and x.requires_grad), None)
        if hidden is not None and torch.is_grad_enabled():
            hidden.register_hook(partial(self._after_backward, chunk, shared))

    def _after_forward(self, chunk: list["_Shared"], shared: "_Shared", _: nn.Module, arguments: object, made: Tensor) -> None:
        if made.requires_grad and shared.unit.backward_reads_weights:
            made.register_hook(partial(self._before_backward, chunk, shared))
        shared.is_in_forward = False
        if not shared.is_in_backward:  # where activations are computed again, the backward that asked for them comes next
            self._leave(chunk, shared)

    def _before_backward(self, chunk: list["_Shared"], shared: "_Shared", _: Tensor) -> None:
        shared.is_in_backward = True
        earlier = (other for other in reversed(chunk[: shared.number]) if other.unit.backward_reads_weights)
        self._use(chunk, shared, following=earlier)

    def _after_backward(self, chunk: list["_Shared"], shared: "_Shared", _: Tensor) -> None:
        shared.is_in_backward = False
        self._leave(chunk, shared)

    def _use(self, chunk: list["_Shared"], shared: "_Shared", following: Iterable["_Shared"]) -> None:
        """Wait for the weights of a unit, and start to gather those of the units that follow."""
        for bucket in shared.buckets:
            self._start(bucket)
        if self._overlaps:
            room = self._ahead
            for other in following:
                room -= sum(bucket.numel for bucket in other.buckets)
                if room < 0:
                    break
                for bucket in other.buckets:
                    self._start(bucket)
        for bucket in shared.buckets:
            wait(self._works[bucket])
            self._works[bucket] = []

    def _start(self, bucket: Bucket) -> None:
        if bucket not in self._works:
            allocate(bucket.model)
            own_part(bucket.model, self._groups[bucket]).copy_(self._shards[bucket])
            self._works[bucket] = start_all_gather_(bucket.model, self._groups[bucket])

    def _leave(self, chunk: list["_Shared"], shared: "_Shared") -> None:
        # The embedding may be called, and left, while a tied output layer is at work.
        running = {bucket for other in chunk if other.is_in_forward for bucket in other.buckets}
        for bucket in shared.buckets:
            if bucket in self._works and bucket not in running:
                self._release(bucket)

    def _release(self, bucket: Bucket) -> None:
        wait(self._works.pop(bucket))
        free(bucket.model)


class _Shared:
    """A unit with the buckets that it needs."""

    def __init__(self, unit: Unit, bucket_of: dict[nn.Parameter, Bucket], number: int) -> None:
        self.unit, self.number = unit, number
        parameters = (p for module in unit.modules for p in module.parameters())
        self.buckets = tuple(dict.fromkeys(bucket_of[p] for p in parameters if p in bucket_of))
        self.is_in_forward = False
        """Between what it is given and what it makes."""
        self.is_in_backward = False
        """Between the gradient of what it made and that of what it was given."""
