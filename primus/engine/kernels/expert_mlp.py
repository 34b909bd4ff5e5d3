"""The feed-forward parts of many experts as one function: y = W2 (p x act(W1 x + b1)) + p x b2 for rows sorted by expert.

What is kept is x (not for frozen weights), W1 x + b1 and p; the activation is computed again in the backward. Experts are
worked on one after the other, or (`grouped`) together: all of them on a GPU, as many as fit the cache on a CPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from primus.engine.kernels.grouped_linear import Product, product_each, weight_gradients
from primus.engine.kernels.weighted_activation import Results, WeightedActivation
from primus.engine.parallel.slot import slot_of

__all__ = ["ExpertForms", "expert_mlp", "expert_mlp_reference"]

Biases = tuple[Tensor, Tensor]
_CACHED_ROWS = 256
"""On a CPU, where a product of many experts is a loop, more rows would only leave the cache between the two products."""


@dataclass(frozen=True, slots=True)
class ExpertForms:
    """How the parts of the function are computed; results are equal within rounding."""

    activation: WeightedActivation
    """What stands between the products."""
    grouped: bool = True
    """All experts are multiplied at once; False: one after the other."""
    product: Product = product_each
    """The product of all rows that are multiplied at once."""

    def rows_at_once(self, x_MH: Tensor) -> int:
        """Return how many rows are worked on together before the next expert waits for its turn."""
        if not self.grouped:
            return 0
        return _CACHED_ROWS if x_MH.device.type == "cpu" else len(x_MH)


def expert_mlp(
    x_MH: Tensor,
    p_M: Tensor,
    w1_EFH: Tensor,
    w2_EHF: Tensor,
    counts: Sequence[int],
    forms: ExpertForms,
    *,
    biases: Biases | None = None,
) -> Tensor:
    """Return the weighted outputs [M, H] of `counts[e]` rows for each expert; `biases` are b1 [E, F] and b2 [E, H]."""
    b1, b2 = biases or (None, None)
    out: Tensor = _ExpertMLP.apply(x_MH, p_M, w1_EFH, w2_EHF, b1, b2, list(counts), forms)
    return out


def expert_mlp_reference(
    x_MH: Tensor,
    p_M: Tensor,
    w1_EFH: Tensor,
    w2_EHF: Tensor,
    counts: Sequence[int],
    activation: Callable[[Tensor], Tensor],
    *,
    biases: Biases | None = None,
) -> Tensor:
    """Return the same with autograd's own gradients."""
    b1_EF, b2_EH = biases or (w1_EFH.new_zeros(w1_EFH.shape[:2]), w2_EHF.new_zeros(w2_EHF.shape[:2]))
    rows = zip(x_MH.split(list(counts)), p_M.unsqueeze(-1).split(list(counts)), w1_EFH, w2_EHF, b1_EF, b2_EH, strict=True)
    return torch.cat([(activation(x @ w1.t() + b1) * p).to(x.dtype) @ w2.t() + p * b2 for x, p, w1, w2, b1, b2 in rows])


class _ExpertMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_MH: Tensor,
        p_M: Tensor,
        w1: nn.Parameter,
        w2: nn.Parameter,
        b1: Tensor | None,
        b2: Tensor | None,
        counts: list[int],
        forms: ExpertForms,
    ) -> Tensor:
        ctx.counts, ctx.forms = counts, forms
        ctx.slots = slot_of(w1), slot_of(w2)
        z_MF, y_MH = x_MH.new_empty(len(x_MH), w1.shape[1]), torch.empty_like(x_MH)
        for rows, experts, part in _stretches(counts, forms.rows_at_once(x_MH)):
            forms.product(x_MH[rows], w1[experts].transpose(1, 2), z_MF[rows], part)
            if b1 is not None:
                _add_each(z_MF[rows], b1[experts], part)
            a_MF = forms.activation.forward(z_MF[rows], p_M[rows])
            forms.product(a_MF, w2[experts].transpose(1, 2), y_MH[rows], part)
            if b2 is not None:
                _add_each(y_MH[rows], b2[experts], part, p_M[rows])
        kept = x_MH if ctx.needs_input_grad[2] else None
        ctx.save_for_backward(kept, p_M, w1, w2, z_MF, *([] if b2 is None else [b2]))
        return y_MH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MH: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, p_M, w1, w2, z_MF, *b2 = ctx.saved_tensors
        dx_MH, dp_M = torch.empty_like(dy_MH), torch.empty_like(p_M)
        dz_MF, a_MF = torch.empty_like(z_MF), z_MF.new_empty(len(z_MF), w2.shape[2])
        forms: ExpertForms = ctx.forms
        for rows, experts, part in _stretches(ctx.counts, forms.rows_at_once(dy_MH)):
            da_MF = torch.empty_like(a_MF[rows])
            forms.product(dy_MH[rows], w2[experts], da_MF, part)
            forms.activation.backward_(da_MF, z_MF[rows], p_M[rows], Results(dz_MF[rows], dp_M[rows], a_MF[rows]))
            forms.product(dz_MF[rows], w1[experts], dx_MH[rows], part)
        d_biases: tuple[Tensor | None, Tensor | None] = (None, None)
        _, _, needs_w1, needs_w2, *_ = ctx.needs_input_grad
        if b2:
            for dy, dp, b in zip(dy_MH.split(ctx.counts), dp_M.split(ctx.counts), b2[0], strict=True):
                dp += (dy @ b).to(dp.dtype)
            d_biases = _sum_each(dz_MF, ctx.counts), _sum_each((dy_MH * p_M.unsqueeze(-1)).to(dy_MH.dtype), ctx.counts)
        d_w1 = weight_gradients(dz_MF, x_MH, ctx.counts, ctx.slots[0]) if needs_w1 else None
        d_w2 = weight_gradients(dy_MH, a_MF, ctx.counts, ctx.slots[1]) if needs_w2 else None
        return dx_MH, dp_M, d_w1, d_w2, *d_biases, None, None


def _add_each(y_MF: Tensor, b_EF: Tensor, counts: Sequence[int], p_M: Tensor | None = None) -> None:
    """Add each expert's bias to its rows, times p, in place."""
    factors = [None] * len(counts) if p_M is None else p_M.unsqueeze(-1).split(list(counts))
    for y, b, p in zip(y_MF.split(list(counts)), b_EF, factors, strict=True):
        y += b if p is None else (p * b).to(y.dtype)


def _sum_each(y_MF: Tensor, counts: Sequence[int]) -> Tensor:
    return torch.stack([y.sum(0) for y in y_MF.split(list(counts))])


def _stretches(counts: list[int], rows_at_once: int) -> list[tuple[slice, slice, list[int]]]:
    """Return rows and experts that are worked on together, with the number of rows of each: experts until there are so many."""
    found, start, first = [], 0, 0
    for number in range(1, len(counts) + 1):
        part = counts[first:number]
        if sum(part) >= rows_at_once or number == len(counts):
            found.append((slice(start, start + sum(part)), slice(first, number), part))
            start, first = start + sum(part), number
    return found
