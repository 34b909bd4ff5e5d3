"""y = x W^T + b, with the gradient of W added straight into the main gradient where there is one.

Autograd alone would write the gradient to fresh memory and add it in a second pass; a GEMM adds for nothing.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["linear", "linear_reference"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b for x of any leading shape."""
    out: Tensor = _Linear.apply(x, weight, bias)
    return out


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b with autograd's own gradients."""
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        dy_TF = dy.flatten(0, -2)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        dx = (dy_TF @ weight).view(x.shape) if needs_x else None
        d_weight = dy_TF.t() @ x.flatten(0, -2) if needs_weight else None
        return dx, d_weight, dy_TF.sum(0) if needs_bias else None
