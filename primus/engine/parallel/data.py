"""Flat memory for weights and gradients, and their reduction over data-parallel ranks (ZeRO stage 1, arXiv 1910.02054).

`GradientBuffers` lays all parameters of one dtype out in one tensor, in reverse order of registration (about the order in which
backward completes them), and their gradients in a second one. Buckets are stretches of it that are reduced together.
With the distributed optimizer each rank ends with its shard of every bucket reduced, updates that, and gathers the weights.

    no overlap   F F F | B B B                | R0 R1 R2 | update | G2 G1 G0 | F F F
    overlap      F F F | B B(R0) B(R1) B(R2)  |          | update | F(G2) F(G1) F(G0)
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor, nn

from primus.engine.config import DDPConfig
from primus.engine.parallel.collectives import (
    Works,
    all_reduce_,
    own_part,
    start_all_gather_,
    start_all_reduce_,
    start_reduce_scatter_,
    wait,
)
from primus.engine.parallel.deferred import DeferredProducts
from primus.engine.parallel.mesh import Group, Mesh
from primus.engine.parallel.sharding import global_parameters, sharding_of
from primus.engine.parallel.slot import GradientSlot

__all__ = ["GradientBuffers", "OwnedRange", "Segment"]

_ALIGNMENT = 64
"""Elements; every parameter starts on a cache line and on a 128-byte boundary of any device."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one parameter that lies in an owned range."""

    name: str
    param: nn.Parameter
    start: int
    """First element within the range."""
    param_start: int
    """First element within the flattened local parameter."""
    numel: int


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A contiguous stretch of weights and gradients that this rank updates."""

    model: Tensor
    grad: Tensor
    segments: tuple[Segment, ...]


@dataclass(slots=True, eq=False)
class _Bucket:
    """A stretch of a buffer that is reduced as one."""

    params: list[nn.Parameter]
    start: int
    """First element within the buffer."""
    model: Tensor
    grad: Tensor
    waiting: int = 0
    """Parameters whose gradient is still incomplete in this step."""
    reduction: Works | None = None
    """None before the reduction is launched."""
    gather: Works | None = None
    """None while the weights are whole."""


@dataclass(slots=True, eq=False)
class _Place:
    """Where a parameter lies."""

    name: str
    param: nn.Parameter
    rank: int
    """In order of registration."""
    offset: int = 0
    """Within its buffer."""


class GradientBuffers:
    """The gradients of a model: accumulation, reduction, and the ranges this rank updates."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        config: DDPConfig,
        mesh: Mesh,
        *,
        grad_dtype: torch.dtype,
        per_token: bool,
    ) -> None:
        """Move the parameters of a rank's model chunks into flat memory.

        `per_token`: sum gradients over ranks instead of averaging them.
        """
        self._config, self._mesh, self._group, self._per_token = config, mesh, mesh.dp_cp, per_token
        self._overlaps = config.overlap_grad_reduce and self._group.size > 1
        alone = Group((mesh.rank,), 0)
        self.shard_group = mesh.intra_dp_cp if config.use_distributed_optimizer else alone
        """Ranks that share the optimizer state; a group of one without the distributed optimizer."""
        self.before_reduction: Callable[[int, Tensor], None] | None = None
        """Called with a bucket's number and this rank's own gradients right before they are reduced."""
        self._sync = True
        self._deferred = DeferredProducts()
        self._launched = 0
        """Buckets whose reduction is under way in this step: the first ones of `_buckets`."""
        self._slots: dict[nn.Parameter, GradientSlot] = {}
        self._places: dict[nn.Parameter, _Place] = {}
        by_dtype: defaultdict[torch.dtype, list[_Place]] = defaultdict(list)
        for rank, (name, param) in enumerate(global_parameters(chunks)):
            if param.requires_grad:
                self._places[param] = _Place(name, param, rank)
                by_dtype[param.dtype].append(self._places[param])
        buckets = [bucket for places in by_dtype.values() for bucket in self._build(places, grad_dtype)]
        # All ranks launch in this order whatever their backwards do first, as collectives must; it is about the order of
        # completion, also where buckets of several dtypes mix.
        self._buckets = sorted(buckets, key=lambda bucket: -min(self._places[param].rank for param in bucket.params))
        self._bucket_of = {self._slots[param]: bucket for bucket in self._buckets for param in bucket.params}
        self._partial_grads = self._find_partial_grads()
        self._watch(module for chunk in chunks for module in chunk.modules())

    def ranges(self) -> list[OwnedRange]:
        """Return what this rank updates: every bucket, or its shard of it."""
        return [self._owned(bucket) for bucket in self._buckets]

    def zero_grad(self) -> None:
        """Start a step: forget all gradients."""
        self._launched = 0
        for slot in self._slots.values():
            slot.empty()
        for bucket in self._buckets:
            bucket.waiting, bucket.reduction = len(bucket.params), None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within only accumulate; the last one of a step runs outside and lets buckets leave."""
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def deferring(self, key: object) -> AbstractContextManager[None]:
        """Backwards within set the weight gradients of linears aside under `key`."""
        return self._deferred.keeping(key)

    def compute_deferred(self, key: object) -> None:
        """Add what was set aside under `key`."""
        self._deferred.compute(key)

    def finish_grad_sync(self) -> None:
        """Complete the step's gradients: reduce over data-parallel ranks, then sum what tensor-parallel ranks hold in parts
        and what pipeline stages hold of one weight."""
        assert self._deferred.is_empty, "weight gradients were set aside and never computed"
        self.finish_param_gather()
        for slot in self._slots.values():
            slot.complete()
        while self._launched < len(self._buckets):
            self._launch_next()
        self._receive()
        self._sum_partial_grads()
        for bucket in self._buckets:
            if _is_tied(bucket.params[0]):
                all_reduce_(own_part(bucket.grad, self.shard_group), self._mesh.embd)

    def gather_params(self) -> None:
        """Give every rank all updated weights; with `overlap_param_gather` the forward waits for each bucket as it needs it."""
        for bucket in reversed(self._buckets):
            bucket.gather = start_all_gather_(bucket.model, self.shard_group)
        if not self._config.overlap_param_gather:
            self.finish_param_gather()

    def finish_param_gather(self) -> None:
        """Wait until the weights are whole; anyone who reads them outside a forward calls this first."""
        for bucket in self._buckets:
            _await_gather(bucket)

    def _build(self, places: list[_Place], grad_dtype: torch.dtype) -> list[_Bucket]:
        """Lay out the parameters of one dtype and move them there."""
        order = list(reversed(places))
        ends = self._lay_out(order)
        first = order[0].param
        model = torch.zeros(ends[-1], dtype=first.dtype, device=first.device)
        grad = torch.zeros(ends[-1], dtype=grad_dtype, device=first.device)
        for place in order:
            span, shape = slice(place.offset, place.offset + place.param.numel()), place.param.shape
            place.param.data = model[span].view(shape).copy_(place.param.data)
            slot = GradientSlot(place.name, grad[span].view(shape), self._on_add, self._deferred)
            self._slots[place.param] = place.param.grad_slot = slot  # type: ignore[attr-defined]
        return [
            _Bucket([p.param for p in order if start <= p.offset < stop], start, model[start:stop], grad[start:stop])
            for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        ]

    def _lay_out(self, order: list[_Place]) -> list[int]:
        """Give every parameter its offset; return where buckets end.

        A weight that two stages hold has a bucket of its own, so that both stages own the same shard of it.
        """
        limit = self._bucket_limit(sum(_round_up(place.param.numel(), _ALIGNMENT) for place in order))
        ends, total = [0], 0
        for place, following in zip_longest(order, order[1:]):
            place.offset = total
            total = _round_up(total + place.param.numel(), _ALIGNMENT)
            is_full = total - ends[-1] >= limit
            if is_full or following is None or _is_tied(place.param) or _is_tied(following.param):
                total = _round_up(total, self._bucket_unit())
                ends.append(total)
        return ends[1:]

    def _bucket_limit(self, num_elements: int) -> float:
        if not self._config.overlap_grad_reduce:
            return math.inf
        if self._config.num_buckets is not None:
            return max(1, num_elements // self._config.num_buckets)
        return self._config.bucket_size or max(40_000_000, 1_000_000 * self._group.size)

    def _bucket_unit(self) -> int:
        size = self.shard_group.size
        if size == 1:
            return _ALIGNMENT
        return math.lcm(size, 128, 65536) if self._config.pad_buckets_for_high_nccl_busbw else math.lcm(size, 128)

    def _find_partial_grads(self) -> list[Tensor]:
        """Return the owned gradients of replicated weights that see a slice of the sequence on each tensor-parallel rank."""
        if self._mesh.tp.size == 1:
            return []
        return [
            owned.grad[segment.start : segment.start + segment.numel]
            for owned in self.ranges()
            for segment in owned.segments
            if sharding_of(segment.param).sequence_parallel_grad
        ]

    def _watch(self, modules: Iterable[nn.Module]) -> None:
        """Hook into autograd, and into forwards that wait for weights."""
        for param in self._slots:
            param.register_post_accumulate_grad_hook(self._on_grad)
        if self._config.overlap_param_gather and self.shard_group.size > 1:
            for module in modules:
                own = (self._slots.get(param) for param in module.parameters(recurse=False))
                buckets = dict.fromkeys(self._bucket_of[slot] for slot in own if slot)
                if buckets:
                    module.register_forward_pre_hook(partial(_await_all, tuple(buckets)))

    def _on_grad(self, param: Tensor) -> None:
        """Move what autograd has accumulated into the flat gradients; nothing, if all of it went to the slot directly."""
        assert isinstance(param, nn.Parameter)
        if param.grad is None:
            return
        self._slots[param].add_(param.grad)
        param.grad = None

    def _on_add(self, slot: GradientSlot) -> None:
        """Let buckets leave once they are complete, in order.

        A weight in two places (tied embeddings) gets two additions if one of them bypasses autograd, so their number is learned
        from past steps, and nothing leaves early in the first.
        """
        if not (self._overlaps and self._sync):
            return
        bucket = self._bucket_of[slot]
        assert bucket.reduction is None, f"a gradient of {slot.name} arrived after its bucket was sent to be reduced"
        slot.arrivals += 1
        if slot.arrivals == slot.expected:
            bucket.waiting -= 1
            while self._launched < len(self._buckets) and self._buckets[self._launched].waiting == 0:
                self._launch_next()

    def _launch_next(self) -> None:
        """Start the reduction of the next bucket; gloo cannot average, so the division is ours on every backend."""
        bucket = self._buckets[self._launched]
        if self.before_reduction is not None:
            self.before_reduction(self._launched, bucket.grad)
        self._launched += 1
        if self._group.size > 1 and not (self._per_token or self._config.average_in_collective):
            bucket.grad.mul_(1.0 / self._group.size)
        if self.shard_group.size > 1:
            bucket.reduction = start_reduce_scatter_(bucket.grad, self.shard_group)
        else:
            bucket.reduction = start_all_reduce_(bucket.grad, self._group)

    def _receive(self) -> None:
        """Wait for the reductions, and add up what other optimizer instances have of the same shards."""
        works: Works = []
        for bucket in self._buckets:
            assert bucket.reduction is not None
            wait(bucket.reduction)
            if self.shard_group.size > 1:
                works += start_all_reduce_(own_part(bucket.grad, self.shard_group), self._mesh.inter_dp_cp)
        wait(works)
        if self._group.size > 1 and self._config.average_in_collective and not self._per_token:
            for bucket in self._buckets:
                own_part(bucket.grad, self.shard_group).mul_(1.0 / self._group.size)

    def _sum_partial_grads(self) -> None:
        if self._partial_grads:
            flat = all_reduce_(torch.cat(self._partial_grads), self._mesh.tp)
            for part, total in zip(self._partial_grads, flat.split([p.numel() for p in self._partial_grads]), strict=True):
                part.copy_(total)

    def _owned(self, bucket: _Bucket) -> OwnedRange:
        size = bucket.model.numel() // self.shard_group.size
        first = bucket.start + self.shard_group.index * size
        segments = []
        for place in (self._places[param] for param in bucket.params):
            start, stop = max(place.offset, first), min(place.offset + place.param.numel(), first + size)
            if start < stop:
                segments.append(Segment(place.name, place.param, start - first, start - place.offset, stop - start))
        model, grad = (own_part(flat, self.shard_group) for flat in (bucket.model, bucket.grad))
        return OwnedRange(model, grad, tuple(segments))


def _is_tied(param: nn.Parameter) -> bool:
    return sharding_of(param).tied_to is not None


def _await_all(buckets: tuple[_Bucket, ...], *_: object) -> None:
    for bucket in buckets:
        _await_gather(bucket)


def _await_gather(bucket: _Bucket) -> None:
    if bucket.gather is not None:
        wait(bucket.gather)
        bucket.gather = None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
