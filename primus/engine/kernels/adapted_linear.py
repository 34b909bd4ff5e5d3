"""y = x W^T + b + scale (z A^T) B^T with a frozen W, where z is x or what dropout leaves of it (LoRA, arXiv 2106.09685).

The two products are added where the first one lies, forward and backward, and what is kept is z and the narrow product: x W^T
needs nothing of x for a frozen W. Gradients of A and B go straight into the flat gradients where they have a slot there.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.kernels.linear import weight_gradient
from primus.engine.parallel.slot import slot_of

__all__ = ["adapted_linear", "adapted_linear_reference", "add_product"]


def adapted_linear(
    x: Tensor, dropped: Tensor | None, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """Return the sum of both products for x of any leading shape; `dropped` None: the second one is of x itself too.

    a is [r, in], b is [out, r]. `weight` and `bias` get no gradient.
    """
    out: Tensor = _AdaptedLinear.apply(x, dropped, weight, bias, a, b, scale)
    return out


def adapted_linear_reference(
    x: Tensor, dropped: Tensor | None, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
) -> Tensor:
    """Return the same with autograd's own gradients."""
    z = x if dropped is None else dropped
    return F.linear(x, weight, bias) + F.linear(F.linear(z, a) * scale, b)


def add_product(y: Tensor, h: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return y + scale h b^T, written over y, which nobody else may need."""
    out: Tensor = _AddProduct.apply(y, h, b, scale)
    return out


class _AdaptedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        dropped: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
        scale: float,
    ) -> Tensor:
        z = x if dropped is None else dropped
        h_TR = F.linear(z.flatten(0, -2), a).mul_(scale)
        y = F.linear(x, weight, bias)
        y.view(-1, y.shape[-1]).addmm_(h_TR, b.t())
        ctx.save_for_backward(z, h_TR, weight, a, b)
        ctx.scale, ctx.slots, ctx.drops = scale, (slot_of(a), slot_of(b)), dropped is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        z, h_TR, weight, a, b = ctx.saved_tensors
        needs_x, needs_dropped, _, _, needs_a, needs_b, _ = ctx.needs_input_grad
        dy_TF = dy.flatten(0, -2)
        dh_TR = (dy_TF @ b).mul_(ctx.scale)
        dx = dy_TF @ weight if needs_x else None
        dz = None
        if ctx.drops:
            dz = (dh_TR @ a).view_as(z) if needs_dropped else None
        elif dx is not None:
            dx.addmm_(dh_TR, a)
        d_a = weight_gradient(dh_TR, z.flatten(0, -2), ctx.slots[0]) if needs_a else None
        d_b = weight_gradient(dy_TF, h_TR, ctx.slots[1]) if needs_b else None
        return dx if dx is None else dx.view(z.shape), dz, None, None, d_a, d_b, None


class _AddProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, h: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(h, b)
        ctx.scale, ctx.slot = scale, slot_of(b)
        y.view(-1, y.shape[-1]).addmm_(h.flatten(0, -2), b.t(), alpha=scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        h, b = ctx.saved_tensors
        _, needs_h, needs_b, _ = ctx.needs_input_grad
        dy_TF = dy.flatten(0, -2)
        dh = (dy_TF @ b).mul_(ctx.scale).view_as(h) if needs_h else None
        d_b = weight_gradient(dy_TF, h.flatten(0, -2) * ctx.scale, ctx.slot) if needs_b else None
        return dy, dh, d_b, None
