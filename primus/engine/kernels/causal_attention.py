"""Causal attention on a CPU: blocks of queries against all keys before them, by batched products of the machine's BLAS.

Forward and backward are FlashAttention-2's (arXiv 2307.08691) but for the blocks of keys: a core's cache holds whole rows of
scores. The query heads of a group are rows of one product, so keys and values are never repeated. Backward works on transposed
scores, [keys, queries]: all its products but one then read their operands as they lie.

Forward and backward of a layer took 43 ms for 51 of torch's kernel with 8 heads of 32, sequence 512, batch 4, on two threads,
and 84 for 89 with 8 heads of 64, sequence 1024, batch 2; on one thread 66 for 77 and 168 for 178.

Letters besides the package's legend: Z = B*G groups, R = N/G queries a group, Q = queries of a block, K = keys up to its end.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["causal_attention"]

_ROWS = 128
"""Rows of a product: fewer run slower, more spend work on blocked pairs."""


def causal_attention(q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V over keys not after the query, [S, B, N*D]; holds no S x S matrix."""
    out: Tensor = _CausalAttention.apply(q_SBND, k_SBGD, v_SBGD)
    return out


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor) -> Tensor:
        S, B, N, D = q_SBND.shape
        groups = B * k_SBGD.shape[2]
        q_ZRSD, v_ZSD = _by_group(q_SBND, groups), _by_group(v_SBGD, groups)[:, 0].contiguous()
        k_ZDS = _by_group(k_SBGD, groups)[:, 0].transpose(1, 2).contiguous()
        out = q_SBND.new_empty(S, B, N, D)
        out_ZRSD = _by_group(out, groups)
        logsumexp_ZRS = q_SBND.new_empty(q_ZRSD.shape[:3])
        never = _never(q_ZRSD)
        (scratch,) = _scratch(q_ZRSD, 1)
        for block, end in _blocks(q_ZRSD):
            rows = _rows(q_ZRSD, block)
            scores = scratch[: rows.shape[0] * rows.shape[1] * end].view(*rows.shape[:2], end)
            _product(rows, k_ZDS[:, :, :end], 1.0 / math.sqrt(D), out=scores)
            size = block.stop - block.start
            scores.unflatten(1, (-1, size))[..., block] += never[:size, :size]
            largest = scores.amax(-1, keepdim=True)
            total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
            out_ZRSD[:, :, block] = torch.bmm(scores, v_ZSD[:, :end]).div_(total).unflatten(1, (-1, size))
            logsumexp_ZRS[:, :, block] = total.log_().add_(largest).view(groups, -1, size)
        ctx.save_for_backward(q_SBND, k_SBGD, v_SBGD, out, logsumexp_ZRS)
        return out.flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_SBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_SBND, k_SBGD, v_SBGD, out, logsumexp_ZRS = ctx.saved_tensors
        groups, scale = logsumexp_ZRS.shape[0], 1.0 / math.sqrt(q_SBND.shape[-1])
        d_out = d_out_SBC.view(out.shape)
        # By the softmax, d_scores = P * (d_P - sum_keys P d_P), and that sum is also d_out . out.
        pull_ZRS = _by_group((d_out * out).sum(-1, keepdim=True), groups)[..., 0]
        q_ZRSD, d_out_ZRSD = _by_group(q_SBND, groups), _by_group(d_out, groups)
        k_ZSD, v_ZSD = (_by_group(t, groups)[:, 0].contiguous() for t in (k_SBGD, v_SBGD))
        d_q = torch.empty_like(out)
        d_q_ZRSD, d_k_ZSD, d_v_ZSD = _by_group(d_q, groups), torch.zeros_like(k_ZSD), torch.zeros_like(v_ZSD)
        never = _never(q_ZRSD).t()[:, None].contiguous()
        scratch, d_scratch = _scratch(q_ZRSD, 2)
        for block, end in _blocks(q_ZRSD):
            rows, d_rows, size = _rows(q_ZRSD, block), _rows(d_out_ZRSD, block), block.stop - block.start
            shape = (groups, end, rows.shape[1])
            p_ZKQ, d_ZKQ = (memory[: math.prod(shape)].view(shape) for memory in (scratch, d_scratch))
            _product(k_ZSD[:, :end], rows.transpose(1, 2), scale, out=p_ZKQ)
            p_ZKQ.unflatten(2, (-1, size))[:, block] += never[:size, :, :size]
            p_ZKQ.sub_(logsumexp_ZRS[:, :, block].reshape(groups, 1, -1)).exp_()
            d_v_ZSD[:, :end] += torch.bmm(p_ZKQ, d_rows)
            torch.bmm(v_ZSD[:, :end], d_rows.transpose(1, 2), out=d_ZKQ)
            d_ZKQ.sub_(pull_ZRS[:, :, block].reshape(groups, 1, -1)).mul_(p_ZKQ)
            d_q_ZRSD[:, :, block] = _product(d_ZKQ.transpose(1, 2), k_ZSD[:, :end], scale).unflatten(1, (-1, size))
            d_k_ZSD[:, :end].add_(torch.bmm(d_ZKQ, rows), alpha=scale)
        d_k, d_v = (t.transpose(0, 1).reshape(k_SBGD.shape) for t in (d_k_ZSD, d_v_ZSD))
        return d_q, d_k, d_v


def _by_group(heads: Tensor, groups: int) -> Tensor:
    """View heads [S, B, N, D] as [Z, R, S, D]."""
    return heads.reshape(heads.shape[0], groups, -1, heads.shape[-1]).permute(1, 2, 0, 3)


def _block_size(queries_per_group: int) -> int:
    return max(32, _ROWS // queries_per_group)


def _blocks(q_ZRSD: Tensor) -> Iterator[tuple[slice, int]]:
    """Yield each block of queries and the end of the keys it sees."""
    length, size = q_ZRSD.shape[2], _block_size(q_ZRSD.shape[1])
    for start in range(0, length, size):
        end = min(start + size, length)
        yield slice(start, end), end


def _rows(heads_ZRSD: Tensor, block: slice) -> Tensor:
    """Return a block of queries with all heads of a group as rows, [Z, R*Q, D]."""
    return heads_ZRSD[:, :, block].flatten(1, 2)


def _never(q_ZRSD: Tensor) -> Tensor:
    """Return what to add to the last Q keys of a block of queries: -inf where the key comes after the query."""
    size = _block_size(q_ZRSD.shape[1])
    return torch.full((size, size), -torch.inf, dtype=q_ZRSD.dtype, device=q_ZRSD.device).triu_(1)


def _scratch(q_ZRSD: Tensor, number: int) -> list[Tensor]:
    """Return flat memory for the scores of a block, taken once: they are the largest tensors here."""
    Z, R, S, _ = q_ZRSD.shape
    return [q_ZRSD.new_empty(Z * R * min(_block_size(R), S) * S) for _ in range(number)]


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale * (a @ b); the product scales its wide accumulator."""
    return torch.baddbmm(a.new_empty(()), a, b, beta=0.0, alpha=scale, out=out)
