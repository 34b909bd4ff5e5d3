"""Attention of some queries to some of their keys, with what is needed to add such parts up to the whole.

A part gives its output and the logarithm of its softmax's denominator; parts over disjoint keys merge exactly (arXiv
2310.01889). The backward of a part takes the merged output and denominator, so that its probabilities are those of the whole.
Every form takes q [B, N, S, D], k and v [B, N, K, D]; `blocked` is bool [B or 1, 1, S, K], None where nothing is blocked.
`factors` [B, N, S, K] multiply the probabilities, as dropout does: the denominators stay those without it. Torch's kernels draw
their own masks, so that parts with factors hold their scores, and so do parts whose scores are capped (`cap`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.kernels.soft_cap import cap_slope, soft_cap_

__all__ = ["Part", "explicit_part", "explicit_part_backward", "merge_", "part", "part_backward"]


@dataclass(slots=True)
class Part:
    """Output [B, N, S, D] and log of the denominators [B, N, S], -inf in a row with everything blocked."""

    out: Tensor
    log_sum: Tensor


def part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    blocked: Tensor | None,
    is_causal: bool = False,
    factors: Tensor | None = None,
    cap: float | None = None,
) -> Part:
    """Attend; `is_causal` blocks what follows, of as many keys as queries."""
    is_plain = _is_plain(q, v, blocked, factors, cap)
    if is_plain and q.device.type == "cpu":
        return Part(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal))
    if is_plain and q.dtype in (torch.float16, torch.bfloat16):
        out, log_sum, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)
        return Part(out, log_sum)
    return explicit_part(q, k, v, blocked=_causal(q) if is_causal else blocked, factors=factors, cap=cap)


def part_backward(
    d_out: Tensor,
    whole: Part,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    blocked: Tensor | None,
    is_causal: bool = False,
    factors: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v through this part of `whole`."""
    is_plain = _is_plain(q, v, blocked, factors, cap)
    if is_plain and q.device.type == "cpu":
        gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            d_out, q, k, v, whole.out, whole.log_sum, 0.0, is_causal
        )
        return gradients
    if is_plain and q.dtype in (torch.float16, torch.bfloat16):
        none = torch.empty(0, dtype=torch.int64, device=q.device)
        log_sum = whole.log_sum.contiguous()  # the kernel reads it without strides
        of_flash: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            *(d_out, q, k, v, whole.out, log_sum, None, None, q.shape[2], k.shape[2], 0.0, is_causal, none, none)
        )
        return of_flash
    rule = _causal(q) if is_causal else blocked
    return explicit_part_backward(d_out, whole, q, k, v, blocked=rule, factors=factors, cap=cap)


def merge_(whole: Part, more: Part) -> None:
    """Add a part over other keys, in place; sums are kept in at least fp32."""
    total = torch.logaddexp(whole.log_sum, more.log_sum)
    # Rows with nothing on either side stay at zero instead of becoming NaN.
    base = total.masked_fill(total.isneginf(), 0.0)
    whole.out.mul_((whole.log_sum - base).exp_().unsqueeze(-1))
    whole.out.add_(more.out * (more.log_sum - base).exp_().unsqueeze(-1))
    whole.log_sum.copy_(total)


def explicit_part(
    q: Tensor, k: Tensor, v: Tensor, *, blocked: Tensor | None, factors: Tensor | None = None, cap: float | None = None
) -> Part:
    """Attend by the formula."""
    scores = _scores(q, k, blocked, cap)
    log_sum = scores.logsumexp(-1)
    p = _probabilities(scores, log_sum)
    return Part((p if factors is None else p * factors) @ v.to(scores.dtype), log_sum)


def explicit_part_backward(
    d_out: Tensor,
    whole: Part,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    blocked: Tensor | None,
    factors: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients by the formula."""
    scores = _scores(q, k, blocked, cap)
    p = _probabilities(scores, whole.log_sum)
    d_out, scale = d_out.to(p.dtype), 1.0 / math.sqrt(q.shape[-1])
    # The sum over keys of P d_P, also under dropout: both it and the output have the factors in them.
    inner = (d_out * whole.out).sum(-1, keepdim=True)
    d_p, dropped = d_out @ v.to(p.dtype).mT, p
    if factors is not None:
        d_p, dropped = d_p * factors, p * factors
    d_scores = p * (d_p - inner) * scale
    if cap is not None:
        d_scores *= cap_slope(scores.masked_fill_(scores.isneginf(), 0.0), cap)
    dq, dk, dv = d_scores @ k.to(p.dtype), d_scores.mT @ q.to(p.dtype), dropped.mT @ d_out
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _is_plain(q: Tensor, v: Tensor, blocked: Tensor | None, factors: Tensor | None, cap: float | None) -> bool:
    """Return whether torch's kernels can do it."""
    return blocked is None and factors is None and cap is None and q.shape[-1] == v.shape[-1]


def _scores(q: Tensor, k: Tensor, blocked: Tensor | None, cap: float | None) -> Tensor:
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = soft_cap_((q.to(wide) @ k.to(wide).mT) / math.sqrt(q.shape[-1]), cap)
    return scores if blocked is None else scores.masked_fill_(blocked, -torch.inf)


def _probabilities(scores: Tensor, log_sum: Tensor) -> Tensor:
    return (scores - log_sum.masked_fill(log_sum.isneginf(), 0.0).unsqueeze(-1)).exp_()


def _causal(q: Tensor) -> Tensor:
    S = q.shape[2]
    return torch.ones(S, S, dtype=torch.bool, device=q.device).triu_(1)
