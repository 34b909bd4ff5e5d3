"""Cross entropy over a vocabulary that may be divided over a group: loss_t = logsumexp_v(logits_t) - logits_t[label_t].

Three forms. `vocab_parallel_cross_entropy` takes whole logits and gives one loss a token. `linear_cross_entropy` takes hidden
states and the output matrix, walks over the tokens in chunks that fit the cache, and never holds more logits than one chunk:
it computes its gradients in the forward, which is possible because it returns the weighted sum of the losses, so that all the
backward can bring is one factor. `deferrable_linear_cross_entropy` does the same, but keeps the logits' gradient in the place
of the matrix's, so that the latter can be computed when somebody has time. This is the only op in the room that talks to other
ranks: three numbers a token.

Softmax statistics run in at least fp32. `Columns` says which part of the vocabulary this rank's columns are; columns beyond
the real vocabulary (padding) never enter the softmax, and their weights get a zero gradient.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from primus.engine.kernels.linear import weight_gradient
from primus.engine.kernels.soft_cap import cap_slope, soft_cap_
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.slot import slot_of

__all__ = ["Columns", "deferrable_linear_cross_entropy", "linear_cross_entropy", "vocab_parallel_cross_entropy"]

_CHUNK_BYTES, _CHUNK_TOKENS = 16 * 2**20, 256
"""Logits of one chunk stay in a server's last-level cache; but a chunk has so many tokens at least, because the three GEMMs of
each read the whole output matrix (vocabulary 32000 on one core: 3.3 s a batch with chunks of 64 tokens, 2.7 s with 256)."""


@dataclass(frozen=True, slots=True)
class Columns:
    """This rank's columns: vocabulary entries `first` to `first + real`, then padding; `group` holds the others."""

    first: int
    real: int
    group: Group


def vocab_parallel_cross_entropy(logits_TV: Tensor, labels_T: Tensor, columns: Columns, *, in_fp16: bool = False) -> Tensor:
    """Return the loss of each token. The memory of `logits_TV` is used up: it becomes the gradient.

    `in_fp16` keeps half-precision logits as they are (`fp16_lm_cross_entropy`).
    """
    out: Tensor = _CrossEntropy.apply(logits_TV, labels_T, columns, in_fp16)
    return out


def linear_cross_entropy(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    labels_T: Tensor,
    loss_weight_T: Tensor,
    columns: Columns,
    cap: float | None = None,
) -> Tensor:
    """Return the sum over tokens of loss_weight x cross entropy of hidden @ weight^T, soft-capped by `cap`.

    The gradient of `hidden_TH` is this rank's part: it still has to be summed over the group.
    """
    needs_grad = torch.is_grad_enabled()
    out: Tensor = _LinearCrossEntropy.apply(hidden_TH, weight_VH, labels_T, loss_weight_T, columns, cap, needs_grad)
    return out


def deferrable_linear_cross_entropy(
    hidden_TH: Tensor,
    weight_VH: Tensor,
    labels_T: Tensor,
    loss_weight_T: Tensor,
    columns: Columns,
    cap: float | None = None,
) -> Tensor:
    """Return what `linear_cross_entropy` does; its backward may set the gradient of `weight_VH` aside.

    Until that is computed tokens x columns numbers of the hidden states' dtype stay in memory.
    """
    if not torch.is_grad_enabled() or not weight_VH.requires_grad:
        return linear_cross_entropy(hidden_TH, weight_VH, labels_T, loss_weight_T, columns, cap)
    out: Tensor = _DeferrableLinearCrossEntropy.apply(hidden_TH, weight_VH, labels_T, loss_weight_T, columns, cap)
    return out


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_TV: Tensor, labels_T: Tensor, columns: Columns, in_fp16: bool) -> Tensor:
        wide = logits_TV if in_fp16 else logits_TV.to(_wide(logits_TV))
        loss_T, sum_T = _softmax_numerator_(wide, labels_T, columns)
        ctx.save_for_backward(wide.div_(sum_T[:, None]), labels_T)
        ctx.columns, ctx.dtype = columns, logits_TV.dtype
        return loss_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss_T: Tensor) -> tuple[Tensor, None, None, None]:
        gradient_TV, labels_T = ctx.saved_tensors
        column_T, owned_T = _own_columns(labels_T, ctx.columns)
        gradient_TV.scatter_add_(1, column_T[:, None], -owned_T.to(gradient_TV.dtype)[:, None])
        return gradient_TV.mul_(d_loss_T[:, None]).to(ctx.dtype), None, None, None


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        labels_T: Tensor,
        loss_weight_T: Tensor,
        columns: Columns,
        cap: float | None,
        needs_grad: bool,
    ) -> Tensor:
        V = weight_VH.shape[0]
        wide = _wide(hidden_TH)
        total = torch.zeros((), dtype=wide, device=hidden_TH.device)
        d_hidden = torch.empty_like(hidden_TH) if needs_grad else None
        d_weight = torch.zeros_like(weight_VH, dtype=wide) if needs_grad and ctx.needs_input_grad[1] else None
        parts = _parts(hidden_TH, V)
        buffer = torch.empty(V, parts[0].stop, dtype=hidden_TH.dtype, device=hidden_TH.device).t()
        for part in parts:
            h = hidden_TH[part]
            logits = torch.mm(h, weight_VH.t(), out=buffer[: len(h)])
            loss, gradient = _loss_and_gradient_(logits, labels_T[part], loss_weight_T[part], columns, cap, needs_grad)
            total += loss
            if gradient is not None and d_hidden is not None:
                torch.mm(gradient, weight_VH, out=d_hidden[part])
            if gradient is not None and d_weight is not None:
                _add_product_(d_weight, gradient.t(), h)
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.dtype = weight_VH.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        d_weight = None if d_weight is None else d_weight.mul_(factor).to(ctx.dtype)
        return d_hidden.mul_(factor), d_weight, None, None, None, None, None


class _DeferrableLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: nn.Parameter,
        labels_T: Tensor,
        loss_weight_T: Tensor,
        columns: Columns,
        cap: float | None,
    ) -> Tensor:
        T, V = hidden_TH.shape[0], weight_VH.shape[0]
        total = torch.zeros((), dtype=_wide(hidden_TH), device=hidden_TH.device)
        d_hidden = torch.empty_like(hidden_TH)
        d_logits = torch.empty(T, V, dtype=hidden_TH.dtype, device=hidden_TH.device)
        for part in _parts(hidden_TH, V):
            logits = torch.mm(hidden_TH[part], weight_VH.t(), out=d_logits[part])
            loss, gradient = _loss_and_gradient_(logits, labels_T[part], loss_weight_T[part], columns, cap, needs_grad=True)
            total += loss
            assert gradient is not None
            torch.mm(gradient, weight_VH, out=d_hidden[part])
        ctx.save_for_backward(hidden_TH, d_hidden, d_logits)
        ctx.slot = slot_of(weight_VH)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, d_hidden, d_logits = ctx.saved_tensors
        d_weight = weight_gradient(d_logits.mul_(factor), hidden_TH, ctx.slot) if ctx.needs_input_grad[1] else None
        return d_hidden.mul_(factor), d_weight, None, None, None, None


def _parts(hidden_TH: Tensor, columns: int) -> list[slice]:
    """Cut the tokens evenly into chunks whose logits stay in the cache; the first one is the longest."""
    T = hidden_TH.shape[0]
    fitting = max(_CHUNK_TOKENS, _CHUNK_BYTES // (_wide(hidden_TH).itemsize * columns))
    # An eighth more is borne, because a chunk of few tokens reads the whole matrix as well.
    chunks = max(1, math.ceil(T / (1.125 * fitting)))
    rows = math.ceil(T / chunks)
    return [slice(start, min(start + rows, T)) for start in range(0, T, rows)]


def _loss_and_gradient_(
    logits_TV: Tensor, labels_T: Tensor, loss_weight_T: Tensor, columns: Columns, cap: float | None, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the weighted sum of the tokens' losses and, in the memory of the logits, their gradient of it."""
    wide_TV = soft_cap_(logits_TV.to(_wide(logits_TV)), cap)
    slope_TV = cap_slope(wide_TV, cap) if cap is not None and needs_grad else None
    loss_weight_T = loss_weight_T.to(wide_TV.dtype)
    loss_T, denominator_T = _softmax_numerator_(wide_TV, labels_T, columns)
    loss = loss_T.dot(loss_weight_T)
    if not needs_grad:
        return loss, None
    wide_TV.mul_((loss_weight_T / denominator_T)[:, None])
    column_T, owned_T = _own_columns(labels_T, columns)
    wide_TV.scatter_add_(1, column_T[:, None], -(owned_T * loss_weight_T)[:, None])
    if slope_TV is not None:
        wide_TV.mul_(slope_TV)
    return loss, wide_TV if wide_TV.dtype == logits_TV.dtype else logits_TV.copy_(wide_TV)


def _softmax_numerator_(logits_TV: Tensor, labels_T: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    """Turn logits into exp(logits - max) in place; return each token's loss and the sum of its row over the group."""
    if columns.real < logits_TV.shape[1]:
        logits_TV[:, columns.real :] = -torch.inf
    max_T = logits_TV.amax(-1)
    all_reduce_(max_T, columns.group, "max")
    logits_TV.sub_(max_T[:, None])
    column_T, owned_T = _own_columns(labels_T, columns)
    target_T = logits_TV.gather(1, column_T[:, None])[:, 0].masked_fill_(~owned_T, 0.0)
    sums_2T = torch.stack((target_T, logits_TV.exp_().sum(-1)))
    all_reduce_(sums_2T, columns.group)
    target_T, sum_T = sums_2T
    return sum_T.log() - target_T, sum_T


def _own_columns(labels_T: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    """Return each label's column on this rank (0 where another rank owns it), and whether this rank owns it."""
    column_T = labels_T - columns.first
    owned_T = (column_T >= 0) & (column_T < columns.real)
    return column_T * owned_T, owned_T


def _add_product_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b; in one pass where the dtypes allow it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
