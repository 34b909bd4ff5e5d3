"""Core attention with a window, chunks, a soft cap on scores, or sinks, in blocks of queries with the keys that they can see.

A sink is a learned score of each head that takes part in its softmax and has no value (GPT-OSS, arXiv 2508.10925): one more
part without output, that only adds to the denominator.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from primus.engine.kernels.block_attention import Part, merge_, part, part_backward
from primus.engine.kernels.position_dropout import PositionDropout

__all__ = ["ScoreRule", "sink_gradient", "sink_part", "varied_attention"]

_ROWS = 128
"""Queries of a block at least: fewer run slower."""
_MOST_ROWS = 512
"""Queries of a block at most where its scores are held, off the CPU, whose cache asks for the fewest."""


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """What becomes of scores besides their scale."""

    window: int | None = None
    """Keys that a query sees, the one of its own position among them; None: all before it."""
    cap: float | None = None
    """Scores stay below this size."""
    chunk: int | None = None
    """Positions are cut into chunks of this length, and a query sees keys of its own alone; None: they are one."""

    @property
    def is_narrow(self) -> bool:
        """Whether a query may miss keys before it."""
        return self.window is not None or self.chunk is not None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to it."""
        return not self.is_narrow and self.cap is None

    def blocked(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return [Q, K], true where a key comes after the query or before what it sees, for positions of both."""
        distance = queries[:, None] - keys[None, :]
        blocked = distance < 0
        if self.window is not None:
            blocked = blocked | (distance >= self.window)
        if self.chunk is not None:
            blocked = blocked | (queries[:, None] // self.chunk != keys[None, :] // self.chunk)
        return blocked

    def first_key(self, query: int) -> int:
        """Return the first position that the query at a position sees."""
        of_window = 0 if self.window is None else max(0, query - self.window + 1)
        return of_window if self.chunk is None else max(of_window, query - query % self.chunk)


def varied_attention(
    q_SBND: Tensor,
    k_SBGD: Tensor,
    v_SBGD: Tensor,
    mask_B1SS: Tensor | None,
    *,
    rule: ScoreRule,
    sink_N: Tensor | None = None,
    dropout: PositionDropout | None = None,
) -> Tensor:
    """Attend as `kernels.attention` says; windows and chunks narrow a mask as they do the causal rule."""
    out: Tensor = _Varied.apply(q_SBND, k_SBGD, v_SBGD, mask_B1SS, rule, sink_N, dropout)
    return out


def sink_part(q_BNSD: Tensor, v_BNSD: Tensor, sink_N: Tensor | None) -> Part:
    """Return what attention starts from: nothing, or a sink's share of the denominator; sums are kept in at least fp32."""
    wide = torch.promote_types(q_BNSD.dtype, torch.float32)
    log_sum = torch.full(q_BNSD.shape[:3], -torch.inf, dtype=wide, device=q_BNSD.device)
    if sink_N is not None:
        log_sum.copy_(sink_N.detach()[None, :, None])
    return Part(torch.zeros(*q_BNSD.shape[:-1], v_BNSD.shape[-1], dtype=wide, device=q_BNSD.device), log_sum)


def sink_gradient(d_out: Tensor, whole: Part, sink_N: Tensor) -> Tensor:
    """Return the gradient of sinks: - sum over queries of p_sink (d_out . out)."""
    p_BNS = (sink_N.detach()[None, :, None] - whole.log_sum).exp()
    inner_BNS = (d_out.to(p_BNS.dtype) * whole.out).sum(-1)
    return -(p_BNS * inner_BNS).sum((0, 2)).to(sink_N.dtype)


class _Varied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_SBND: Tensor,
        k_SBGD: Tensor,
        v_SBGD: Tensor,
        mask: Tensor | None,
        rule: ScoreRule,
        sink_N: Tensor | None,
        dropout: PositionDropout | None,
    ) -> Tensor:
        q, k, v = _by_head(q_SBND, k_SBGD, v_SBGD)
        whole = sink_part(q, v, sink_N)
        for rows, keys, how in _meetings(q, k, mask, rule, dropout):
            made = part(q[:, :, rows], k[:, :, keys], v[:, :, keys], **how)
            merge_(Part(whole.out[:, :, rows], whole.log_sum[:, :, rows]), made)
        out = whole.out.to(q.dtype)
        ctx.save_for_backward(q_SBND, k_SBGD, v_SBGD, out, whole.log_sum, mask, sink_N)
        ctx.rule, ctx.dropout = rule, dropout
        return out.permute(2, 0, 1, 3).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_SBC: Tensor) -> tuple[Tensor | None, ...]:
        q_SBND, k_SBGD, v_SBGD, out, log_sum, mask, sink_N = ctx.saved_tensors
        q, k, v = _by_head(q_SBND, k_SBGD, v_SBGD)
        d_out = d_out_SBC.unflatten(-1, (q.shape[1], -1)).permute(1, 2, 0, 3)
        wide = log_sum.dtype
        d_q, d_k, d_v = (torch.zeros(x.shape, dtype=wide, device=x.device) for x in (q, k, v))
        for rows, keys, how in _meetings(q, k, mask, ctx.rule, ctx.dropout):
            whole = Part(out[:, :, rows], log_sum[:, :, rows])
            one = part_backward(d_out[:, :, rows], whole, q[:, :, rows], k[:, :, keys], v[:, :, keys], **how)
            for total, where, more in zip((d_q, d_k, d_v), (rows, keys, keys), one, strict=True):
                total[:, :, where] += more
        d_sink = None if sink_N is None else sink_gradient(d_out, Part(out, log_sum), sink_N)
        gathered = (x.unflatten(1, (k_SBGD.shape[2], -1)).sum(2) for x in (d_k, d_v))
        d_q, d_k, d_v = (x.permute(2, 0, 1, 3).to(q.dtype) for x in (d_q, *gathered))
        return d_q, d_k, d_v, None, None, d_sink, None


def _by_head(q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return [B, N, S, D] of each, keys and values repeated for the query heads of their group."""
    repeats = q_SBND.shape[2] // k_SBGD.shape[2]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q_SBND, k_SBGD, v_SBGD))
    return q, k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)


def _meetings(
    q: Tensor, k: Tensor, mask: Tensor | None, rule: ScoreRule, dropout: PositionDropout | None
) -> Iterator[tuple[slice, slice, dict[str, Any]]]:
    """Yield blocks of queries with the keys that they can see, and what is blocked and dropped between them."""
    S, K = q.shape[2], k.shape[2]
    positions = torch.arange(K, device=q.device)
    is_free = mask is None and dropout is None and rule.cap is None
    size = _block(S, rule, is_free=is_free, most=_ROWS if q.device.type == "cpu" else _MOST_ROWS)
    for start in range(0, S, size):
        rows = slice(start, min(start + size, S))
        first, last = K - S + rows.start, K - S + rows.stop
        begin, common = rule.first_key(first), rule.first_key(last - 1)
        if is_free and common <= first:
            # Torch's kernels take the keys of the block itself, and those before it that all its queries see.
            yield rows, slice(first, last), {"blocked": None, "is_causal": True}
            if common < first:
                yield rows, slice(common, first), {"blocked": None}
            if begin < common:
                edge = slice(begin, common)
                yield rows, edge, {"blocked": rule.blocked(positions[first:last], positions[edge])[None, None]}
            continue
        keys = slice(begin, last if mask is None or rule.is_narrow else K)
        blocked = None if mask is None else mask[:, :, rows, keys]
        if mask is None or rule.is_narrow:
            narrowed = rule.blocked(positions[first:last], positions[keys])[None, None]
            blocked = narrowed if blocked is None else blocked | narrowed
        factors = None if dropout is None else dropout.factors(q, positions[first:last], positions[keys])
        yield rows, keys, {"blocked": blocked, "cap": rule.cap, "factors": factors}


def _block(S: int, rule: ScoreRule, *, is_free: bool, most: int) -> int:
    """Return the queries of a block: few enough that little is blocked, and that scores, where they are held, are not many."""
    if is_free and rule.window is None:
        return S if rule.chunk is None else max(rule.chunk, _ROWS - _ROWS % rule.chunk)
    size = min(most, max(_ROWS, min(rule.window or S, rule.chunk or S) // 4))
    # A block of whole chunks has no keys in vain at its start.
    return size if rule.chunk is None or rule.chunk > size else size - size % rule.chunk
