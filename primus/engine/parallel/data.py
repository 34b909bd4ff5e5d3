"""Flat memory for weights and gradients, and their reduction over data-parallel ranks (ZeRO stage 1, arXiv 1910.02054).

`GradientBuffers` lays all parameters of one dtype out in one tensor, in reverse order of registration (about the order in which
backward completes them), and their gradients in a second one. Buckets are stretches of it that are reduced together.
With the distributed optimizer each rank ends with its shard of every bucket reduced, updates that, and gathers the weights.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from primus.engine.config import DDPConfig
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group, Mesh

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


@dataclass(slots=True)
class _Bucket:
    """A stretch [start, stop) of a buffer that is reduced as one."""

    buffer: "_Buffer"
    start: int
    stop: int
    params: list[nn.Parameter]
    pending: int = 0
    """Parameters whose gradient is still incomplete in this step."""
    reduction: tuple[dist.Work | None, Tensor | None] | None = None
    """The running collective and where its result arrives; None before it is launched."""
    gather: dist.Work | None = None

    def shard(self, group: Group) -> slice:
        """Return the part that the group's member owns."""
        size = (self.stop - self.start) // group.size
        first = self.start + group.index * size
        return slice(first, first + size)


@dataclass(slots=True)
class _Buffer:
    """All parameters of one dtype."""

    model: Tensor
    grad: Tensor
    offsets: dict[nn.Parameter, int]
    names: dict[nn.Parameter, str]
    buckets: list[_Bucket] = field(default_factory=list)


class GradientBuffers:
    """The gradients of a model: accumulation, reduction, and the ranges this rank updates."""

    def __init__(self, model: nn.Module, config: DDPConfig, mesh: Mesh, *, grad_dtype: torch.dtype, per_token: bool) -> None:
        """Move the model's parameters into flat memory. `per_token`: sum gradients over ranks instead of averaging them."""
        self._config, self._mesh, self._group, self._per_token = config, mesh, mesh.dp_cp, per_token
        alone = Group((mesh.rank,), 0)
        self.shard_group = mesh.dp_cp if config.use_distributed_optimizer else alone
        """Ranks that share the optimizer state; a group of one without the distributed optimizer."""
        self.before_reduction: Callable[[int, Tensor], None] | None = None
        """Called with a bucket's number and this rank's own gradients right before they are reduced."""
        self._sync = True
        by_dtype: dict[torch.dtype, list[tuple[str, nn.Parameter]]] = {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                by_dtype.setdefault(param.dtype, []).append((name, param))
        self._buffers = [self._build(named, grad_dtype) for named in by_dtype.values()]
        self._buckets = [bucket for buffer in self._buffers for bucket in buffer.buckets]
        self._bucket_of = {param: bucket for bucket in self._buckets for param in bucket.params}
        self._watch(model)

    def ranges(self) -> list[OwnedRange]:
        """Return what this rank updates: every bucket, or its shard of it."""
        return [self._owned(bucket) for bucket in self._buckets]

    def zero_grad(self) -> None:
        """Start a step: forget all gradients."""
        for buffer in self._buffers:
            buffer.grad.zero_()
        for bucket in self._buckets:
            bucket.pending, bucket.reduction = len(bucket.params), None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within only accumulate; the last one of a step runs outside and lets buckets leave."""
        self._sync = False
        try:
            yield
        finally:
            self._sync = True

    def finish_grad_sync(self) -> None:
        """Complete the step's gradients: reduce over data-parallel ranks, then sum what tensor-parallel ranks hold in parts."""
        for bucket in self._buckets:
            if bucket.reduction is None:
                self._launch(bucket)
        for bucket in self._buckets:
            self._receive(bucket)
        self._sum_partial_grads()

    def gather_params(self) -> None:
        """Give every rank all updated weights; with `overlap_param_gather` the forward waits for each bucket as it needs it."""
        if self.shard_group.size == 1:
            return
        for bucket in reversed(self._buckets):
            own = bucket.buffer.model[bucket.shard(self.shard_group)].clone()
            whole = bucket.buffer.model[bucket.start : bucket.stop]
            bucket.gather = dist.all_gather_single(whole, own, group=self.shard_group.handle, async_op=True)
        if not self._config.overlap_param_gather:
            self.finish_param_gather()

    def finish_param_gather(self) -> None:
        """Wait until the weights are whole; anyone who reads them outside a forward calls this first."""
        for bucket in self._buckets:
            self._await_gather(bucket)

    def _build(self, named: list[tuple[str, nn.Parameter]], grad_dtype: torch.dtype) -> _Buffer:
        order = list(reversed(named))
        ends: list[int] = []
        offsets: dict[nn.Parameter, int] = {}
        total = 0
        limit, first = self._bucket_limit(sum(p.numel() for _, p in order)), 0
        for i, (_, param) in enumerate(order):
            offsets[param] = total
            total = _round_up(total + param.numel(), _ALIGNMENT)
            if total - (ends[-1] if ends else 0) >= limit or i + 1 == len(order):
                total = _round_up(total, self._bucket_unit())
                ends.append(total)
        data = torch.zeros(total, dtype=order[0][1].dtype, device=order[0][1].device)
        grad = torch.zeros(total, dtype=grad_dtype, device=data.device)
        buffer = _Buffer(data, grad, offsets, {param: name for name, param in order})
        for end in ends:
            params = [param for param in offsets if first <= offsets[param] < end]
            buffer.buckets.append(_Bucket(buffer, first, end, params))
            first = end
        for param, offset in offsets.items():
            view = data[offset : offset + param.numel()].view(param.shape)
            view.copy_(param.data)
            param.data = view
            self._attach_grad(param, grad[offset : offset + param.numel()].view(param.shape))
        return buffer

    def _attach_grad(self, param: nn.Parameter, view: Tensor) -> None:
        """Let autograd add into the buffer: directly where the dtypes agree, through a hook otherwise."""
        param.main_grad = view  # type: ignore[attr-defined]
        if param.dtype == view.dtype:
            param.grad = view

    def _bucket_limit(self, num_elements: int) -> int:
        if not self._config.overlap_grad_reduce:
            return num_elements + 1 if num_elements else 1
        if self._config.num_buckets is not None:
            return max(1, num_elements // self._config.num_buckets)
        return self._config.bucket_size or max(40_000_000, 1_000_000 * self._group.size)

    def _bucket_unit(self) -> int:
        size = self.shard_group.size
        if size == 1:
            return _ALIGNMENT
        return math.lcm(size, 128, 65536) if self._config.pad_buckets_for_high_nccl_busbw else math.lcm(size, 128)

    def _watch(self, model: nn.Module) -> None:
        """Hook into autograd where a gradient must be moved or may leave early, and into forwards that wait for weights."""
        overlaps = self._config.overlap_grad_reduce and self._group.size > 1
        for param in self._bucket_of:
            if overlaps or param.grad is None:
                param.register_post_accumulate_grad_hook(self._on_grad)
        if self._config.overlap_param_gather and self.shard_group.size > 1:
            for module in model.modules():
                buckets = {id(b): b for p in module.parameters(recurse=False) if (b := self._bucket_of.get(p))}
                if buckets:
                    module.register_forward_pre_hook(partial(self._await_all, tuple(buckets.values())))

    def _on_grad(self, param: Tensor) -> None:
        assert isinstance(param, nn.Parameter)
        main_grad: Tensor = param.main_grad  # type: ignore[attr-defined]
        if param.grad is not None and param.grad.data_ptr() != main_grad.data_ptr():
            main_grad.add_(param.grad)
            param.grad = None
        if self._sync and self._config.overlap_grad_reduce:
            bucket = self._bucket_of[param]
            bucket.pending -= 1
            if bucket.pending == 0:
                self._launch(bucket)

    def _launch(self, bucket: _Bucket) -> None:
        """Start the reduction of a bucket; gloo cannot average, so the division is ours on every backend."""
        grad = bucket.buffer.grad[bucket.start : bucket.stop]
        if self.before_reduction is not None:
            number = next(i for i, known in enumerate(self._buckets) if known is bucket)
            self.before_reduction(number, grad)
        if self._group.size == 1:
            bucket.reduction = None, None
            return
        if not (self._per_token or self._config.average_in_collective):
            grad.mul_(1.0 / self._group.size)
        if self.shard_group.size > 1:
            result = torch.empty_like(grad[: grad.numel() // self.shard_group.size])
            work = dist.reduce_scatter_single(result, grad, group=self._group.handle, async_op=True)
            bucket.reduction = work, result
        else:
            bucket.reduction = dist.all_reduce(grad, group=self._group.handle, async_op=True), None

    def _receive(self, bucket: _Bucket) -> None:
        assert bucket.reduction is not None
        work, result = bucket.reduction
        if work is None:
            return
        work.wait()
        own = bucket.buffer.grad[bucket.shard(self.shard_group)]
        if result is not None:
            own.copy_(result)
        if self._config.average_in_collective and not self._per_token:
            own.mul_(1.0 / self._group.size)

    def _sum_partial_grads(self) -> None:
        """Sum over tensor-parallel ranks the gradients of replicated weights that saw a slice of the sequence each."""
        if self._mesh.tp.size == 1:
            return
        parts = [
            owned.grad[segment.start : segment.start + segment.numel]
            for owned in self.ranges()
            for segment in owned.segments
            if segment.param.sharding.sequence_parallel_grad  # type: ignore[attr-defined]
        ]
        if parts:
            flat = all_reduce_(torch.cat(parts), self._mesh.tp)
            for part, total in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(total)

    def _owned(self, bucket: _Bucket) -> OwnedRange:
        own, buffer = bucket.shard(self.shard_group), bucket.buffer
        segments = []
        for param in bucket.params:
            offset = buffer.offsets[param]
            start, stop = max(offset, own.start), min(offset + param.numel(), own.stop)
            if start < stop:
                segments.append(Segment(buffer.names[param], param, start - own.start, start - offset, stop - start))
        return OwnedRange(buffer.model[own], buffer.grad[own], tuple(segments))

    def _await_all(self, buckets: tuple[_Bucket, ...], *_: object) -> None:
        for bucket in buckets:
            self._await_gather(bucket)

    def _await_gather(self, bucket: _Bucket) -> None:
        if bucket.gather is not None:
            bucket.gather.wait()
            bucket.gather = None


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
