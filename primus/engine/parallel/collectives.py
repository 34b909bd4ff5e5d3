"""Collectives with their gradients. Each takes its group, returns at once for a group of one, and says both directions.

Sequence means dim 0 of `[s, b, h]` activations.
"""

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.parallel.mesh import Group

__all__ = [
    "Works",
    "all_gather_object",
    "all_reduce_",
    "copy_to_group",
    "gather_last_dim",
    "gather_sequence",
    "gather_sequence_scatter_heads",
    "own_part",
    "reduce_scatter_sequence",
    "scatter_sequence",
    "scatter_sequence_gather_heads",
    "start_all_gather_",
    "start_all_reduce_",
    "start_gather",
    "start_reduce_scatter_",
    "start_ring_shift",
    "sum_forward",
    "wait",
]

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

Works = list[dist.Work]
"""Collectives under way; `wait` completes them. Empty for a group of one."""


def all_reduce_(x: Tensor, group: Group, op: Literal["sum", "max", "min"] = "sum") -> Tensor:
    """Reduce `x` in place over the group; no gradient."""
    if group.size > 1:
        dist.all_reduce(x, _OPS[op], group=group.handle)
    return x


def all_gather_object(value: Any, group: Group) -> list[Any]:
    """Return every member's picklable value, in the group's order."""
    if group.size == 1:
        return [value]
    values: list[Any] = [None] * group.size
    dist.all_gather_object(values, value, group=group.handle)
    return values


def own_part(x: Tensor, group: Group) -> Tensor:
    """Return this rank's part of the equal parts of dim 0, as a view."""
    return x.chunk(group.size)[group.index]


def start_all_reduce_(x: Tensor, group: Group) -> Works:
    """Start to sum `x` in place over the group; no gradient."""
    return [dist.all_reduce(x, group=group.handle, async_op=True)] if group.size > 1 else []


def start_reduce_scatter_(x: Tensor, group: Group) -> Works:
    """Start to sum the own part of `x` over the group; the other parts become void. No gradient.

    gloo sums all parts: its reduce-scatter works through fresh memory (16 M floats, 2 ranks: 171 ms, all-reduce 58 ms).
    """
    if group.size == 1 or _is_gloo(group):
        return start_all_reduce_(x, group)
    return [dist.reduce_scatter_single(own_part(x, group), x, group=group.handle, async_op=True)]


def start_all_gather_(x: Tensor, group: Group) -> Works:
    """Start to fill the other parts of `x` from the ranks that own them; no gradient.

    gloo broadcasts each part: its all-gather works through fresh memory (16 M floats, 2 ranks: 125 ms, broadcasts 35 ms).
    """
    if group.size == 1:
        return []
    if _is_gloo(group):
        parts = zip(group.ranks, x.chunk(group.size), strict=True)
        return [dist.broadcast(part, source, group=group.handle, async_op=True) for source, part in parts]
    return [dist.all_gather_single(x, own_part(x, group), group=group.handle, async_op=True)]


def start_gather(x: Tensor, group: Group) -> tuple[Tensor, Works]:
    """Start to gather `x` along the sequence; return where all of it arrives. No gradient."""
    whole = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    own_part(whole, group).copy_(x)
    return whole, start_all_gather_(whole, group)


def start_ring_shift(x: Tensor, group: Group, *, into: Tensor | None = None) -> tuple[Tensor, Works]:
    """Start to send `x` to the next rank of a ring; return where the previous one's arrives: `into`, or new memory.

    No gradient.
    """
    if group.size == 1:
        return x, []
    following, previous = (group.ranks[(group.index + step) % group.size] for step in (1, -1))
    arriving = torch.empty_like(x) if into is None else into
    send = dist.P2POp(dist.isend, x.contiguous(), following, group.handle)
    receive = dist.P2POp(dist.irecv, arriving, previous, group.handle)
    return arriving, list(dist.batch_isend_irecv([send, receive]))


def wait(works: Works) -> None:
    """Complete collectives: the CPU waits for gloo, the current stream for the device."""
    for work in works:
        work.wait()


def copy_to_group(x: Tensor, group: Group) -> Tensor:
    """Identity forward, sum of the gradients backward (the `f` of Megatron's paper)."""
    return x if group.size == 1 else _apply(_Copy, x, group)


def sum_forward(x: Tensor, group: Group) -> Tensor:
    """Sum forward; the gradient passes unchanged (the `g` of Megatron's paper)."""
    return x if group.size == 1 else _apply(_Sum, x, group)


def gather_sequence(x: Tensor, group: Group, *, partial_grad: bool = True) -> Tensor:
    """All-gather along the sequence forward.

    Backward a reduce-scatter if the ranks' gradients are parts of a sum (`partial_grad`), else a split.
    """
    return x if group.size == 1 else _apply(_Gather, x, group, 0, partial_grad)


def gather_last_dim(x: Tensor, group: Group, *, partial_grad: bool = False) -> Tensor:
    """All-gather along the last dim forward.

    Backward a split if every rank goes on with the same computation, a reduce-scatter if each uses its own part of the result.
    """
    return x if group.size == 1 else _apply(_Gather, x, group, x.dim() - 1, partial_grad)


def reduce_scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Reduce-scatter along the sequence forward, all-gather backward."""
    return x if group.size == 1 else _apply(_ReduceScatter, x, group)


def scatter_sequence(x: Tensor, group: Group) -> Tensor:
    """Keep this rank's part of the sequence forward, all-gather backward."""
    return x if group.size == 1 else _apply(_Scatter, x, group)


def gather_sequence_scatter_heads(x: Tensor, group: Group) -> Tensor:
    """Exchange heads (dim 2) for positions (dim 0), which come in the order of the ranks; backward the reverse."""
    return x if group.size == 1 else _apply(_Exchange, x, group, 2, 0)


def scatter_sequence_gather_heads(x: Tensor, group: Group) -> Tensor:
    """Exchange positions (dim 0) for heads (dim 2); backward the reverse."""
    return x if group.size == 1 else _apply(_Exchange, x, group, 0, 2)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


def _sum(x: Tensor, group: Group) -> Tensor:
    return all_reduce_(x.clone(memory_format=torch.contiguous_format), group)


def _split(x: Tensor, group: Group, dim: int) -> Tensor:
    return x.chunk(group.size, dim)[group.index].contiguous()


def _gathered(x: Tensor, group: Group, dim: int) -> Tensor:
    out, works = start_gather(x, group)
    wait(works)
    return out if dim == 0 else torch.cat(out.chunk(group.size), dim=dim)


def _scattered_sum(x: Tensor, group: Group, dim: int) -> Tensor:
    if dim != 0:
        return _scattered_sum(x.movedim(dim, 0), group, 0).movedim(0, dim).contiguous()
    if _is_gloo(group):
        return own_part(_sum(x, group), group).clone()
    out = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
    dist.reduce_scatter_single(out, x.contiguous(), group=group.handle)
    return out


def _is_gloo(group: Group) -> bool:
    return str(dist.get_backend(group.handle)) == "gloo"


def _exchanged(x: Tensor, group: Group, split: int, join: int) -> Tensor:
    parts = torch.stack(x.chunk(group.size, split))
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts, group=group.handle)
    return torch.cat(arrived.unbind(0), join)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, split: int, join: int) -> Tensor:
        ctx.group, ctx.split, ctx.join = group, split, join
        return _exchanged(x, group, split, join)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(dy, ctx.group, ctx.join, ctx.split), None, None, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _sum(dy, ctx.group), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int, partial_grad: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.partial_grad = group, dim, partial_grad
        return _gathered(x, group, dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        take = _scattered_sum if ctx.partial_grad else _split
        return take(dy, ctx.group, ctx.dim), None, None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _scattered_sum(x, group, 0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _gathered(dy, ctx.group, 0), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _split(x, group, 0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return _gathered(dy, ctx.group, 0), None
