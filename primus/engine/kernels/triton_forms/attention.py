"""Causal attention without the score matrix, forward and backward (FlashAttention-2, arXiv 2307.08691).

A program of the forward, and of the gradient of queries, has a block of queries and walks over the keys before it; one of the
gradients of keys and values has a block of keys and walks over the queries of all heads of its group: no atomics, so that a run
repeats to the bit. Queries are those of the last positions; value heads may be narrower or wider than key heads.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from primus.engine.kernels.triton_forms.wide import wide_type

__all__ = ["causal_attention"]

_ROWS, _KEYS = 64, 64


def causal_attention(q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V over keys not after the query, [S, B, N*V]."""
    out: Tensor = _CausalAttention.apply(q_SBND, k_SBGD, v_SBGD)
    return out


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor) -> Tensor:
        q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in (q_SBND, k_SBGD, v_SBGD))
        S, B, N, _ = q.shape
        out = q.new_empty(S, B, N, v.shape[-1])
        log_sum = torch.empty(B, N, S, dtype=torch.promote_types(q.dtype, torch.float32), device=q.device)
        _forward[(triton.cdiv(S, _ROWS), B * N)](q, k, v, out, log_sum, *_strides(q, k, v, out), **_sizes(q, k, v))
        ctx.save_for_backward(q, k, v, out, log_sum)
        return out.flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_SBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, log_sum = ctx.saved_tensors
        S, B, N, _ = q.shape
        d_out = d_out_SBC.reshape(out.shape).contiguous()
        # By the softmax d_scores = P * (d_P - sum over keys of P d_P), and that sum is also d_out . out.
        pull = (d_out.to(log_sum.dtype) * out).sum(-1).permute(1, 2, 0).contiguous()
        d_q, d_k, d_v = (torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v))
        given, sizes = (q, k, v, d_out, log_sum, pull), _sizes(q, k, v)
        strides = _strides(q, k, v, d_out)
        _query_gradient[(triton.cdiv(S, _ROWS), B * N)](*given, d_q, *strides, *d_q.stride()[:3], **sizes)
        keys = (triton.cdiv(len(k), _KEYS), B * k.shape[2])
        _key_gradients[keys](*given, d_k, d_v, *strides, *d_k.stride()[:3], *d_v.stride()[:3], **sizes)
        return d_q, d_k, d_v


def _strides(*heads_SBND: Tensor) -> list[int]:
    return [stride for heads in heads_SBND for stride in heads.stride()[:3]]


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Any]:
    return {
        "S": len(q),
        "K": len(k),
        "N": q.shape[2],
        "R": q.shape[2] // k.shape[2],
        "D": q.shape[3],
        "V": v.shape[3],
        "scale": 1.0 / math.sqrt(q.shape[3]),
        "WIDE": wide_type(torch.promote_types(q.dtype, torch.float32)),
        "ROWS": _ROWS,
        "KEYS": _KEYS,
        # A product has at least 16 of everything.
        "BLOCK_D": max(16, triton.next_power_of_2(q.shape[3])),
        "BLOCK_V": max(16, triton.next_power_of_2(v.shape[3])),
    }


@triton.jit
def _tile(base, rows, row_stride, count, columns, width):
    """Return a tile of a head [rows, columns], zero outside."""
    inside = (rows[:, None] < count) & (columns[None, :] < width)
    return tl.load(base + rows[:, None].to(tl.int64) * row_stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _put(base, rows, row_stride, count, columns, width, values):
    """Write a tile of a head."""
    inside = (rows[:, None] < count) & (columns[None, :] < width)
    tl.store(base + rows[:, None].to(tl.int64) * row_stride + columns[None, :], values, mask=inside)


@triton.jit
def _scores(queries, keys, rows, columns, before, K, scale: tl.constexpr, WIDE: tl.constexpr):
    """Return scaled scores [rows, columns], -inf where a key comes after the query or there is none."""
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee", out_dtype=WIDE) * scale
    visible = (columns[None, :] <= rows[:, None] + before) & (columns[None, :] < K)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _forward(
    q, k, v, out, log_sum,
    q_s, q_b, q_n, k_s, k_b, k_n, v_s, v_b, v_n, o_s, o_b, o_n,
    S, K, N, R, D, V, scale: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch, head = (tl.program_id(1) // N).to(tl.int64), (tl.program_id(1) % N).to(tl.int64)
    group, before = head // R, K - S
    at_d, at_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    queries = _tile(q + batch * q_b + head * q_n, rows, q_s, S, at_d, D)
    top = tl.full((ROWS,), float("-inf"), dtype=WIDE)
    total = tl.zeros((ROWS,), dtype=WIDE)
    mean = tl.zeros((ROWS, BLOCK_V), dtype=WIDE)
    for start in range(0, tl.minimum(K, before + (tl.program_id(0) + 1) * ROWS), KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = _tile(k + batch * k_b + group * k_n, columns, k_s, K, at_d, D)
        values = _tile(v + batch * v_b + group * v_n, columns, v_s, K, at_v, V)
        scores = _scores(queries, keys, rows, columns, before, K, scale, WIDE)
        # Every query sees key 0, which is in the first block, so that the largest score is finite from there on.
        new_top = tl.maximum(top, tl.max(scores, 1))
        p = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        mean = tl.dot(p.to(values.dtype), values, mean * shrink[:, None], input_precision="ieee", out_dtype=WIDE)
        top = new_top
    _put(out + batch * o_b + head * o_n, rows, o_s, S, at_v, V, mean / total[:, None])
    tl.store(log_sum + (batch * N + head) * S + rows, top + tl.log(total), mask=rows < S)


@triton.jit
def _query_gradient(
    q, k, v, d_out, log_sum, pull, d_q,
    q_s, q_b, q_n, k_s, k_b, k_n, v_s, v_b, v_n, o_s, o_b, o_n, dq_s, dq_b, dq_n,
    S, K, N, R, D, V, scale: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    batch, head = (tl.program_id(1) // N).to(tl.int64), (tl.program_id(1) % N).to(tl.int64)
    group, before = head // R, K - S
    at_d, at_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    queries = _tile(q + batch * q_b + head * q_n, rows, q_s, S, at_d, D)
    d_rows = _tile(d_out + batch * o_b + head * o_n, rows, o_s, S, at_v, V)
    of_row = (batch * N + head) * S + rows
    sums = tl.load(log_sum + of_row, mask=rows < S, other=0.0)
    pulls = tl.load(pull + of_row, mask=rows < S, other=0.0)
    total = tl.zeros((ROWS, BLOCK_D), dtype=WIDE)
    for start in range(0, tl.minimum(K, before + (tl.program_id(0) + 1) * ROWS), KEYS):
        columns = start + tl.arange(0, KEYS)
        keys = _tile(k + batch * k_b + group * k_n, columns, k_s, K, at_d, D)
        values = _tile(v + batch * v_b + group * v_n, columns, v_s, K, at_v, V)
        p = tl.exp(_scores(queries, keys, rows, columns, before, K, scale, WIDE) - sums[:, None])
        d_p = tl.dot(d_rows, tl.trans(values), input_precision="ieee", out_dtype=WIDE)
        d_scores = (p * (d_p - pulls[:, None])).to(keys.dtype)
        total = tl.dot(d_scores, keys, total, input_precision="ieee", out_dtype=WIDE)
    _put(d_q + batch * dq_b + head * dq_n, rows, dq_s, S, at_d, D, total * scale)


@triton.jit
def _key_gradients(
    q, k, v, d_out, log_sum, pull, d_k, d_v,
    q_s, q_b, q_n, k_s, k_b, k_n, v_s, v_b, v_n, o_s, o_b, o_n, dk_s, dk_b, dk_n, dv_s, dv_b, dv_n,
    S, K, N, R, D, V, scale: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    groups = N // R
    batch, group = (tl.program_id(1) // groups).to(tl.int64), (tl.program_id(1) % groups).to(tl.int64)
    before = K - S
    at_d, at_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    keys = _tile(k + batch * k_b + group * k_n, columns, k_s, K, at_d, D)
    values = _tile(v + batch * v_b + group * v_n, columns, v_s, K, at_v, V)
    key_total = tl.zeros((KEYS, BLOCK_D), dtype=WIDE)
    value_total = tl.zeros((KEYS, BLOCK_V), dtype=WIDE)
    # The first query that sees any of these keys, down to the start of a block.
    first = tl.maximum(tl.program_id(0) * KEYS - before, 0) // ROWS * ROWS
    for head in range(group * R, (group + 1) * R):
        for start in range(first, S, ROWS):
            rows = start + tl.arange(0, ROWS)
            queries = _tile(q + batch * q_b + head * q_n, rows, q_s, S, at_d, D)
            d_rows = _tile(d_out + batch * o_b + head * o_n, rows, o_s, S, at_v, V)
            of_row = (batch * N + head) * S + rows
            # Rows beyond the last have nothing to give: their probabilities are exp(-inf).
            sums = tl.load(log_sum + of_row, mask=rows < S, other=float("inf"))
            pulls = tl.load(pull + of_row, mask=rows < S, other=0.0)
            p = tl.exp(_scores(queries, keys, rows, columns, before, K, scale, WIDE) - sums[:, None])
            d_p = tl.dot(d_rows, tl.trans(values), input_precision="ieee", out_dtype=WIDE)
            value_total = tl.dot(tl.trans(p.to(d_rows.dtype)), d_rows, value_total, input_precision="ieee", out_dtype=WIDE)
            d_scores = (p * (d_p - pulls[:, None])).to(queries.dtype)
            key_total = tl.dot(tl.trans(d_scores), queries, key_total, input_precision="ieee", out_dtype=WIDE)
    _put(d_k + batch * dk_b + group * dk_n, columns, dk_s, K, at_d, D, key_total * scale)
    _put(d_v + batch * dv_b + group * dv_n, columns, dv_s, K, at_v, V, value_total)
