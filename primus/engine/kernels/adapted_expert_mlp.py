"""Experts with frozen matrices and adapters: y = (W2 + s B2 A2) (p x act((W1 + s B1 A1) x + b1)) + p x b2 for sorted rows.

An adapter is a stack of pairs, A [G, r, in] and B [G, out, r]: one for each expert, or one (G = 1) that all rows meet. What is
kept is x, p, the input of the activation and the narrow products; the activation is computed again in the backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from primus.engine.kernels.expert_mlp import Biases, ExpertForms
from primus.engine.kernels.grouped_linear import Product, weight_gradients
from primus.engine.kernels.weighted_activation import Results
from primus.engine.parallel.slot import slot_of

__all__ = ["Pair", "adapted_expert_mlp"]


@dataclass(frozen=True, slots=True)
class Pair:
    """The adapter of one of the two linears."""

    a: Tensor
    """[G, r, in]."""
    b: Tensor
    """[G, out, r]."""
    scale: float


def adapted_expert_mlp(
    x_MH: Tensor,
    p_M: Tensor,
    weights: tuple[Tensor, Tensor],
    pairs: tuple[Pair | None, Pair | None],
    counts: Sequence[int],
    forms: ExpertForms,
    *,
    biases: Biases | None = None,
) -> Tensor:
    """Return the weighted outputs [M, H] of `counts[e]` rows for each expert; `biases` are b1 [E, F] and b2 [E, H]."""
    (w1, w2), (b1, b2) = weights, biases or (None, None)
    first, last = ((None, None) if pair is None else (pair.a, pair.b) for pair in pairs)
    scales = tuple(1.0 if pair is None else pair.scale for pair in pairs)
    out: Tensor = _AdaptedExpertMLP.apply(x_MH, p_M, w1, w2, b1, b2, *first, *last, list(counts), scales, forms)
    return out


class _AdaptedExpertMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_MH: Tensor,
        p_M: Tensor,
        w1: Tensor,
        w2: Tensor,
        b1: Tensor | None,
        b2: Tensor | None,
        a1: Tensor | None,
        o1: Tensor | None,
        a2: Tensor | None,
        o2: Tensor | None,
        counts: list[int],
        scales: tuple[float, float],
        forms: ExpertForms,
    ) -> Tensor:
        products = _Products(forms.product, counts)
        z_MF = products.of(x_MH, w1.transpose(1, 2))
        h1 = products.add_narrow(z_MF, x_MH, a1, o1, scales[0])
        if b1 is not None:
            z_MF += products.spread(b1)
        a_MF = forms.activation.forward(z_MF, p_M)
        y_MH = products.of(a_MF, w2.transpose(1, 2))
        h2 = products.add_narrow(y_MH, a_MF, a2, o2, scales[1])
        if b2 is not None:
            y_MH += (products.spread(b2) * p_M.unsqueeze(-1)).to(y_MH.dtype)
        ctx.save_for_backward(None if a1 is None else x_MH, p_M, w1, w2, z_MF, b2, a1, o1, a2, o2, h1, h2)
        ctx.products, ctx.scales, ctx.forms = products, scales, forms
        ctx.slots = [None if t is None else slot_of(t) for t in (a1, o1, a2, o2)]
        return y_MH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MH: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, p_M, w1, w2, z_MF, b2, a1, o1, a2, o2, h1, h2 = ctx.saved_tensors
        products, forms = ctx.products, ctx.forms
        grads: list[Tensor | None] = [None] * 4
        if a1 is None and not any(ctx.needs_input_grad[:2]):
            # Nothing before the second adapter is trained.
            dx_MH, dp_M, a_MF = None, None, forms.activation.forward(z_MF, p_M)
            dh2 = products.narrow(dy_MH, o2.transpose(1, 2), ctx.scales[1])
        else:
            da_MF = products.of(dy_MH, w2)
            dh2 = products.add_narrow(da_MF, dy_MH, _turned(o2), _turned(a2), ctx.scales[1])
            dz_MF, a_MF, dp_M = torch.empty_like(z_MF), z_MF.new_empty(len(z_MF), w2.shape[2]), torch.empty_like(p_M)
            forms.activation.backward_(da_MF, z_MF, p_M, Results(dz_MF, dp_M, a_MF))
            if b2 is not None:
                dp_M += (dy_MH * products.spread(b2)).sum(-1).to(dp_M.dtype)
            dx_MH = products.of(dz_MF, w1) if ctx.needs_input_grad[0] else None
            dh1 = products.add_narrow(dx_MH, dz_MF, _turned(o1), _turned(a1), ctx.scales[0])
            if dh1 is not None:
                grads[0] = products.gradient(dh1, x_MH, a1, ctx.slots[0])
                grads[1] = products.gradient(dz_MF, h1, o1, ctx.slots[1])
        if dh2 is not None:
            grads[2] = products.gradient(dh2, a_MF, a2, ctx.slots[2])
            grads[3] = products.gradient(dy_MH, h2, o2, ctx.slots[3])
        return dx_MH, dp_M, None, None, None, None, *grads, None, None, None


class _Products:
    """Products of rows that are sorted by expert with a matrix for each expert, or with one for all."""

    def __init__(self, product: Product, counts: list[int]) -> None:
        self._product, self._counts = product, counts

    def of(self, x_MA: Tensor, matrices_GAB: Tensor) -> Tensor:
        """Return each row's product with its matrix, [M, B]."""
        if len(matrices_GAB) == 1:
            return x_MA @ matrices_GAB[0]
        out = x_MA.new_empty(len(x_MA), matrices_GAB.shape[2])
        self._product(x_MA, matrices_GAB, out, self._counts)
        return out

    def narrow(self, x: Tensor, a: Tensor, scale: float) -> Tensor:
        """Return s (a x) [M, r]."""
        return self.of(x, a.transpose(1, 2)).mul_(scale)

    def add_narrow(self, y: Tensor | None, x: Tensor, a: Tensor | None, b: Tensor | None, scale: float) -> Tensor | None:
        """Add s b (a x) to y, if that is wanted, and return s (a x) [M, r]; nothing without an adapter."""
        if a is None or b is None:
            return None
        h_MR = self.narrow(x, a, scale)
        if y is None:
            return h_MR
        if len(b) == 1:
            y.addmm_(h_MR, b[0].t())
        else:
            y += self.of(h_MR, b.transpose(1, 2))
        return h_MR

    def gradient(self, dy: Tensor, x: Tensor, matrices: Tensor, slot: Any) -> Tensor | None:
        """Return dy^T x of each matrix, or add it to the slot."""
        return weight_gradients(dy, x, [len(x)] if len(matrices) == 1 else self._counts, slot)

    def spread(self, values_EF: Tensor) -> Tensor:
        """Return the values of each row's expert, [M, F]."""
        counts = torch.tensor(self._counts, device=values_EF.device)
        return values_EF.repeat_interleave(counts, dim=0)


def _turned(stack: Tensor | None) -> Tensor | None:
    return None if stack is None else stack.transpose(1, 2)
