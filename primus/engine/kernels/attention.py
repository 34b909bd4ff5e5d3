"""Core attention: softmax(scale Q K^T) V over causal or explicitly masked positions, with grouped queries.

Every form takes q [S, B, N, D], k [K, B, G, D] and v [K, B, G, V] as views of whatever layout the projections left, and returns
[S, B, N*V]; mostly V is D.
The queries are those of the last S of K positions. A mask is bool [B or 1, 1, S, K], True where attention is blocked, and
replaces the causal rule; None means causal.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.kernels.causal_attention import causal_attention, is_short
from primus.engine.kernels.pick import Form
from primus.engine.kernels.position_dropout import PositionDropout
from primus.engine.kernels.soft_cap import soft_cap
from primus.engine.kernels.varied_attention import ScoreRule

__all__ = ["explicit_attention", "fused_attention", "plain_attention_form", "same_width", "sdpa_attention"]

_PLAIN = ScoreRule()


def fused_attention(
    q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask_B1SS: Tensor | None, *, dropout: float = 0.0
) -> Tensor:
    """Attend by `causal_attention` over short sequences in wide floats on a CPU, else through torch's kernels."""
    is_plain = mask_B1SS is None and not dropout and is_short(len(k_SBGD), q_SBND.shape[-1])
    if is_plain and q_SBND.device.type == "cpu" and q_SBND.dtype in (torch.float32, torch.float64):
        return causal_attention(q_SBND, k_SBGD, v_SBGD)
    return sdpa_attention(q_SBND, k_SBGD, v_SBGD, mask_B1SS, dropout=dropout)


def plain_attention_form(form: Form) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function that `form` means for causal attention without a mask and without dropout."""
    if form == "triton":
        from primus.engine.kernels.triton_forms import attention

        return attention.causal_attention
    return lambda q_SBND, k_SBGD, v_SBGD: fused_attention(q_SBND, k_SBGD, v_SBGD, None)


def sdpa_attention(q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask_B1SS: Tensor | None, *, dropout: float = 0.0) -> Tensor:
    """Attend through torch's scaled_dot_product_attention, which never holds the score matrix if its kernels fit."""
    channels, value_channels = q_SBND.shape[-1], v_SBGD.shape[-1]
    if channels != value_channels and q_SBND.device.type == "cpu":
        # The kernel takes one width; without it, torch would hold the scores.
        q_SBND, k_SBGD, v_SBGD = same_width(q_SBND, k_SBGD, v_SBGD)
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q_SBND, k_SBGD, v_SBGD))
    is_square = q.shape[2] == k.shape[2]
    # The plain rule counts queries from the first key, this one from the last.
    causal = None if is_square or mask_B1SS is not None else _causal_lower_right(q.shape[2], k.shape[2])
    out_BNSD = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=causal if mask_B1SS is None else ~mask_B1SS,
        dropout_p=dropout,
        is_causal=mask_B1SS is None and is_square,
        scale=1.0 / math.sqrt(channels),
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out_BNSD[..., :value_channels].permute(2, 0, 1, 3).flatten(2)


def same_width(*heads: Tensor) -> tuple[Tensor, ...]:
    """Widen heads by zeros to the widest: neither scores nor the values' own channels change."""
    width = max(each.shape[-1] for each in heads)
    return tuple(each if each.shape[-1] == width else F.pad(each, (0, width - each.shape[-1])) for each in heads)


def explicit_attention(
    q_SBND: Tensor,
    k_SBGD: Tensor,
    v_SBGD: Tensor,
    mask_B1SS: Tensor | None,
    *,
    dropout: PositionDropout | None = None,
    softmax_in_fp32: bool = False,
    layer_scaling: int = 1,
    rule: ScoreRule = _PLAIN,
    sink_N: Tensor | None = None,
) -> Tensor:
    """Attend by the formula, holding the scores; `sink_N` are scores of each head beside those of its keys.

    `layer_scaling` n divides the scores inside the product and multiplies them back in fp32: nothing changes but the range
    that half precision has to hold. `softmax_in_fp32` lifts half-precision scores before mask and softmax.
    """
    S, B, N, D = q_SBND.shape
    K, G = k_SBGD.shape[0], k_SBGD.shape[2]
    q = q_SBND.view(S, B, G, N // G, D).permute(1, 2, 3, 0, 4).reshape(B * G, -1, D)
    k = k_SBGD.permute(1, 2, 3, 0).reshape(B * G, D, K)
    v = v_SBGD.permute(1, 2, 0, 3).reshape(B * G, K, -1)
    # The product scales its wide accumulator; scaling q first would round it.
    scores = torch.baddbmm(q.new_empty(()), q, k, beta=0.0, alpha=1.0 / (math.sqrt(D) * layer_scaling))
    if softmax_in_fp32 or layer_scaling > 1:
        scores = scores.to(torch.promote_types(q.dtype, torch.float32)) * layer_scaling
    scores = soft_cap(scores.view(B, N, S, K), rule.cap)
    positions = torch.arange(K, device=q.device)
    blocked = rule.blocked(positions[K - S :], positions)
    if mask_B1SS is not None:
        blocked = mask_B1SS | blocked if rule.is_narrow else mask_B1SS
    # The lowest finite number, not -inf: a row with everything blocked gives the mean of V instead of NaN.
    scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
    if sink_N is None:
        probabilities = scores.softmax(-1)
    else:
        sinks = sink_N.to(scores.dtype)[None, :, None, None].expand(B, N, S, 1)
        probabilities = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    if dropout is not None:
        probabilities = probabilities * dropout.factors(q_SBND.permute(1, 2, 0, 3), positions[K - S :], positions)
    out = probabilities.to(v.dtype).view(B * G, -1, K) @ v
    return out.view(B, N, S, -1).permute(2, 0, 1, 3).flatten(2)


def _causal_lower_right(queries: int, keys: int) -> Tensor:
    # Imports torch's compiler: a second for a start that mostly needs none of it.
    from torch.nn.attention.bias import causal_lower_right

    mask: Tensor = causal_lower_right(queries, keys)
    return mask
