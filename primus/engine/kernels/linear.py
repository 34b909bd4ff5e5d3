"""y = x W^T + b, whose weight gradient is written straight into the flat gradients where the weight has a slot there.

Autograd alone would write it to fresh memory and add it in a second pass; a GEMM adds for nothing. A frozen weight has no such
gradient, and x is not kept for it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.parallel.slot import GradientSlot, slot_of

__all__ = ["linear", "linear_reference", "weight_gradient"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for x of any leading shape."""
    out: Tensor = _Linear.apply(x, weight, bias)
    return out


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b with autograd's own gradients."""
    return F.linear(x, weight, bias)


def weight_gradient(dy_TF: Tensor, x_TH: Tensor, slot: GradientSlot | None) -> Tensor | None:
    """Return dy^T x for autograd, or add it to the slot and return None."""
    if slot is None:
        return dy_TF.t() @ x_TH
    slot.add_product_(dy_TF.t(), x_TH)
    return None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.slot = slot_of(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dy_TF = dy.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        dx = (dy_TF @ weight).view(*dy.shape[:-1], -1) if needs_x else None
        d_weight = weight_gradient(dy_TF, x.flatten(0, -2), ctx.slot) if needs_weight else None
        return dx, d_weight, dy_TF.sum(0) if needs_bias else None
