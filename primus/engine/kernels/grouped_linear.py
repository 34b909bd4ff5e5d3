"""Linears of many experts in one call: rows of x are sorted by expert, and each run of rows meets its own matrix.

The loop over experts is one product each, written into one result; weight gradients go straight into the flat gradients where
the weights have a slot there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from primus.engine.parallel.slot import slot_of

__all__ = ["grouped_linear", "grouped_linear_reference"]


def grouped_linear(x_MH: Tensor, weight_EFH: Tensor, counts: Sequence[int]) -> Tensor:
    """Return x_e W_e^T for each expert's `counts[e]` rows of x, [M, F]."""
    out: Tensor = _GroupedLinear.apply(x_MH, weight_EFH, counts)
    return out


def grouped_linear_reference(x_MH: Tensor, weight_EFH: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the same with autograd's own gradients."""
    return torch.cat([x @ w.t() for x, w in zip(x_MH.split(list(counts)), weight_EFH, strict=True)])


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, weight_EFH: nn.Parameter, counts: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x_MH, weight_EFH)
        ctx.slot, ctx.counts = slot_of(weight_EFH), list(counts)
        y_MF = x_MH.new_empty(len(x_MH), weight_EFH.shape[1])
        _each(x_MH, weight_EFH.transpose(1, 2), y_MF, ctx.counts)
        return y_MF

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MF: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_MH, weight_EFH = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        dx_MH = None
        if needs_x:
            dx_MH = torch.empty_like(x_MH)
            _each(dy_MF, weight_EFH, dx_MH, ctx.counts)
        pairs = zip(dy_MF.split(ctx.counts), x_MH.split(ctx.counts), strict=True)
        d_weight = None
        if needs_weight and ctx.slot is None:
            d_weight = torch.stack([dy.t() @ x for dy, x in pairs])
        elif needs_weight:
            ctx.slot.add_products_([(dy.t(), x) for dy, x in pairs])
        return dx_MH, d_weight, None


def _each(x_MA: Tensor, matrices_EAB: Tensor, out_MB: Tensor, counts: list[int]) -> None:
    for x, matrix, out in zip(x_MA.split(counts), matrices_EAB, out_MB.split(counts), strict=True):
        if len(x):
            torch.mm(x, matrix, out=out)
