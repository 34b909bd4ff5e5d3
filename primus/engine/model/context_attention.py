"""Core attention over a sequence whose positions are divided over context-parallel ranks; one class a way to reach the rest.

- `RingAttention` (p2p): keys and values go round the ring, each rank adds up parts (arXiv 2310.01889)
- `GatheredAttention` (allgather): each rank gathers all keys and values
- `ExchangedAttention` (a2a): ranks exchange positions for heads and attend over the whole sequence (arXiv 2309.14509); around
  a ring it exchanges within groups of neighbours, and the ring joins the groups (a2a+p2p, arXiv 2405.07719)

All take q [S, B, N, D], k and v [S, B, G, D] with S this rank's positions, and a mask of the whole sequence.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from primus.engine.kernels.attention import sdpa_attention
from primus.engine.kernels.block_attention import Part, merge_, part, part_backward
from primus.engine.kernels.position_dropout import PositionDropout
from primus.engine.kernels.segments import Mask, Segments
from primus.engine.kernels.varied_attention import ScoreRule, sink_gradient, sink_part, varied_attention
from primus.engine.parallel import collectives
from primus.engine.parallel.context import from_rank_order, positions, to_rank_order
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.random import RandomStreams

__all__ = ["ExchangedAttention", "GatheredAttention", "RingAttention"]


class RingAttention(nn.Module):
    """Keys and values of the other ranks pass by; nothing whole is ever held.

    `share` tells which of how many equal shares of the heads it is given; dropout then drops what it drops of whole ones.
    """

    def __init__(
        self, ring: Group, streams: RandomStreams, *, dropout: float, rule: ScoreRule, share: tuple[int, int] = (0, 1)
    ) -> None:
        super().__init__()
        self.ring, self.streams, self.dropout, self.rule, self.share = ring, streams, dropout, rule, share

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask, sink_N: Tensor | None = None) -> Tensor:
        dropout = None
        if self.training and self.dropout:
            length = len(q_SBND) * self.ring.size
            dropout = PositionDropout(self.streams.number("model-parallel"), self.dropout, length, self.share)
        q_BNSD = q_SBND.permute(1, 2, 0, 3)
        kv_2BGSD = torch.stack((k_SBGD, v_SBGD)).permute(0, 2, 3, 1, 4)
        out_BNSD: Tensor = _Ring.apply(q_BNSD, kv_2BGSD, mask, self.ring, dropout, self.rule, sink_N)
        return out_BNSD.permute(2, 0, 1, 3).flatten(2)


class GatheredAttention(nn.Module):
    """Keys and values are gathered; the early and the late half of the queries attend to what precedes each."""

    def __init__(self, cp: Group, streams: RandomStreams, *, dropout: float, rule: ScoreRule) -> None:
        super().__init__()
        self.cp, self.streams, self.dropout, self.rule = cp, streams, dropout, rule

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask, sink_N: Tensor | None = None) -> Tensor:
        k, v = (from_rank_order(collectives.gather_sequence(x, self.cp), self.cp.size) for x in (k_SBGD, v_SBGD))
        dropout = self.dropout if self.training else 0.0
        with self.streams.fork("model-parallel" if dropout else None):
            halves = [
                self._attend(q, rows, k, v, mask, dropout, sink_N)
                for q, rows in zip(q_SBND.chunk(2), positions(len(k), self.cp.size, self.cp.index).chunk(2), strict=True)
            ]
        return torch.cat(halves)

    def _attend(
        self, q: Tensor, rows: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, sink_N: Tensor | None
    ) -> Tensor:
        # Read on the host, where it lies, before the device has it.
        stop, rows = int(rows[-1]) + 1, rows.to(q.device)
        if not isinstance(mask, Tensor):
            k, v = k[:stop], v[:stop]
        keys = torch.arange(len(k), device=q.device)
        narrowed = mask.blocked(self.rule, rows, keys) if isinstance(mask, Segments) else self.rule.blocked(rows, keys)
        blocked = narrowed[None, None]
        if isinstance(mask, Tensor):
            own = mask.index_select(2, rows)
            blocked = own | blocked if self.rule.is_narrow else own
        if sink_N is None and self.rule.cap is None:
            return sdpa_attention(q, k, v, blocked, dropout=dropout)
        assert not dropout, "the front door refuses dropout here"
        return varied_attention(q, k, v, blocked, rule=ScoreRule(cap=self.rule.cap), sink_N=sink_N)


class ExchangedAttention(nn.Module):
    """Each rank attends for a share of the heads over all positions of its group; `inner` is the attention over these."""

    def __init__(self, group: Group, inner: Callable[[Tensor, Tensor, Tensor, Mask, Tensor | None], Tensor]) -> None:
        super().__init__()
        self.group, self.inner = group, inner

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask, sink_N: Tensor | None = None) -> Tensor:
        q, k, v = (self._gather_positions(x) for x in (q_SBND, k_SBGD, v_SBGD))
        own_sink = None if sink_N is None else sink_N.chunk(self.group.size)[self.group.index]
        context = self.inner(q, k, v, mask, own_sink).unflatten(-1, (q.shape[2], q.shape[3]))
        in_ranks = to_rank_order(context, self.group.size)
        return collectives.scatter_sequence_gather_heads(in_ranks, self.group).flatten(2)

    def _gather_positions(self, x_SBND: Tensor) -> Tensor:
        return from_rank_order(collectives.gather_sequence_scatter_heads(x_SBND, self.group), self.group.size)


class _Ring(torch.autograd.Function):
    """Parts of attention around a ring; the backward goes round once more, and gradients of keys and values travel along."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv: Tensor,
        mask: Mask,
        ring: Group,
        dropout: PositionDropout | None,
        scores: ScoreRule,
        sink_N: Tensor | None,
    ) -> Tensor:
        whole, passing = sink_part(q, q, sink_N), kv.contiguous()
        for step in range(ring.size):
            following, works = _shift(passing, ring, step < ring.size - 1)
            rows, keys, rule = _meeting(q, passing, mask, ring, step, dropout, scores)
            k, v = (_for_queries(x, q) for x in passing[..., keys, :])
            made = part(q[:, :, rows], k, v, **rule)
            merge_(Part(whole.out[:, :, rows], whole.log_sum[:, :, rows]), made)
            collectives.wait(works)
            passing = following
        out = whole.out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, whole.log_sum, sink_N)
        ctx.ring, ctx.mask, ctx.dropout, ctx.scores = ring, mask, dropout, scores
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, out, log_sum, sink_N = ctx.saved_tensors
        ring: Group = ctx.ring
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, passing = torch.zeros(q.shape, dtype=wide, device=q.device), kv.contiguous()
        d_passing = torch.zeros(kv.shape, dtype=wide, device=q.device)
        for step in range(ring.size):
            following, works = _shift(passing, ring, step < ring.size - 1)
            rows, keys, rule = _meeting(q, passing, ctx.mask, ring, step, ctx.dropout, ctx.scores)
            k, v = (_for_queries(x, q) for x in passing[..., keys, :])
            whole = Part(out[:, :, rows], log_sum[:, :, rows])
            part_dq, dk, dv = part_backward(d_out[:, :, rows], whole, q[:, :, rows], k, v, **rule)
            dq[:, :, rows] += part_dq
            for gathered, d in zip(d_passing[..., keys, :], (dk, dv), strict=True):
                gathered += d.unflatten(1, (gathered.shape[1], -1)).sum(2)
            collectives.wait(works)
            passing = following
            d_passing, works = _shift(d_passing, ring, True)
            collectives.wait(works)
        d_sink = None if sink_N is None else sink_gradient(d_out, Part(out, log_sum), sink_N)
        return dq.to(q.dtype), d_passing.to(kv.dtype), None, None, None, None, d_sink


def _shift(x: Tensor, ring: Group, goes_on: bool) -> tuple[Tensor, collectives.Works]:
    return collectives.start_ring_shift(x, ring) if goes_on else (x, [])


def _meeting(
    q: Tensor,
    passing: Tensor,
    mask: Mask,
    ring: Group,
    step: int,
    dropout: PositionDropout | None,
    scores: ScoreRule,
) -> tuple[slice, slice, dict[str, Any]]:
    """Return which queries meet which of the passing keys in a step, and what is blocked and dropped between them."""
    owner, S = (ring.index - step) % ring.size, q.shape[2]
    own, theirs = (positions(S * ring.size, ring.size, index).to(q.device) for index in (ring.index, owner))
    rows = keys = slice(None)
    rule: dict[str, Any] = {"blocked": None, "cap": scores.cap}
    if isinstance(mask, Segments):
        rule["blocked"] = mask.blocked(scores, own, theirs)[None, None]
    elif mask is not None:
        rule["blocked"] = mask.index_select(2, own).index_select(3, theirs)
        if scores.is_narrow:
            rule["blocked"] = rule["blocked"] | scores.blocked(own, theirs)
    elif scores.is_narrow:
        rows, keys = _in_sight(scores, S * ring.size, ring.size, ring.index, owner)
        rule["blocked"] = scores.blocked(own[rows], theirs[keys])[None, None]
    elif owner == ring.index:
        rule["is_causal"] = True
    elif owner < ring.index:  # its early half precedes all queries, its late half none
        keys = slice(S // 2)
    else:  # only the late half of the queries follows its keys, and all of them
        rows = slice(S // 2, None)
    if dropout is not None:
        rule["factors"] = dropout.factors(q, own[rows], theirs[keys])
    return rows, keys, rule


@cache
def _in_sight(scores: ScoreRule, length: int, size: int, index: int, owner: int) -> tuple[slice, slice]:
    """Return the stretches of one rank's queries and of another's keys outside which nothing is seen.

    Where nothing is seen at all, they are one query and one key, which stay blocked: a part needs both.
    """
    seen = ~scores.blocked(positions(length, size, index), positions(length, size, owner))
    rows, keys = (seen.any(dim).nonzero().flatten().tolist() or [0] for dim in (1, 0))
    return slice(rows[0], rows[-1] + 1), slice(keys[0], keys[-1] + 1)


def _for_queries(x_BGKD: Tensor, q: Tensor) -> Tensor:
    """Repeat key or value heads for the query heads of their group."""
    return x_BGKD.repeat_interleave(q.shape[1] // x_BGKD.shape[1], dim=1)
