"""Experts with frozen matrices and adapters: y = (W2 + s B2 A2) (p x act((W1 + s B1 A1) x + b1)) + p x b2 for sorted rows.

An adapter is a stack of pairs, A [G, r, in] and B [G, out, r]: one for each expert, or one (G = 1) that all rows meet. With
DoRA rows of W + s B A are multiplied by factors; with dropout A reads less, or less of what B gives is added. What is kept is
x, p, the input of the activation and the narrow products (with DoRA also sums before they are multiplied, with dropout a byte
a value); the activation is computed again in the backward.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from primus.engine.kernels.expert_mlp import Biases, ExpertForms
from primus.engine.kernels.grouped_linear import Product, weight_gradients
from primus.engine.kernels.row_dropout import dropped
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
    factors: Tensor | None = None
    """Of the rows of W + s B A, [E, out], in at least fp32; not with `drops_result`."""
    kept: Tensor | None = None
    """What is not dropped of the rows that A reads, [M, in], or (`drops_result`) that B gives, [M, out]; bool."""
    probability: float = 0.0
    """Of being dropped."""
    drops_result: bool = False


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
    first, last = ((None,) * 4 if pair is None else (pair.a, pair.b, pair.factors, pair.kept) for pair in pairs)
    ways = tuple(_Way() if pair is None else _Way(pair.scale, pair.probability, pair.drops_result) for pair in pairs)
    fixed = list(counts), ways, forms
    out: Tensor = _AdaptedExpertMLP.apply(x_MH, p_M, *weights, *(biases or (None, None)), *first, *last, *fixed)
    return out


class _Way(NamedTuple):
    """What of an adapter is no tensor."""

    scale: float = 1.0
    probability: float = 0.0
    drops_result: bool = False


class _AdaptedExpertMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, p_M: Tensor, w1: Tensor, w2: Tensor, *rest: Any) -> Tensor:
        (b1, b2, *tensors), (counts, ways, forms) = rest[:-3], rest[-3:]
        products = _Products(forms.product, counts)
        first, last = _Side(products, w1, tensors[:4], ways[0]), _Side(products, w2, tensors[4:], ways[1])
        z_MF, read, h1, u1 = first.forward(x_MH)
        if b1 is not None:
            z_MF += products.spread(b1)
        y_MH, _, h2, u2 = last.forward(forms.activation.forward(z_MF, p_M))
        if b2 is not None:
            y_MH += (products.spread(b2) * p_M.unsqueeze(-1)).to(y_MH.dtype)
        ctx.save_for_backward(p_M, w1, w2, z_MF, b2, *tensors, read, h1, u1, h2, u2)
        ctx.products, ctx.ways, ctx.forms = products, ways, forms
        ctx.slots = [None if t is None else slot_of(t) for t in (*tensors[:2], *tensors[4:6])]
        return y_MH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MH: Tensor) -> tuple[Tensor | None, ...]:
        p_M, w1, w2, z_MF, b2, *tensors, read, h1, u1, h2, u2 = ctx.saved_tensors
        products, forms, (needs_x, needs_p, *_) = ctx.products, ctx.forms, ctx.needs_input_grad
        first, last = _Side(products, w1, tensors[:4], ctx.ways[0]), _Side(products, w2, tensors[4:], ctx.ways[1])
        if tensors[0] is None and not needs_x and not needs_p:
            # Nothing before the second adapter is trained.
            back, a_MF = last.backward(dy_MH, u2, needs_dx=False), forms.activation.forward(z_MF, p_M)
            return (*[None] * 10, *last.gradients(back, last.read(a_MF), h2, ctx.slots[2:]), *[None] * 3)
        back = last.backward(dy_MH, u2, needs_dx=True)
        dz_MF, a_MF, dp_M = torch.empty_like(z_MF), z_MF.new_empty(len(z_MF), w2.shape[2]), torch.empty_like(p_M)
        assert back.dx is not None
        forms.activation.backward_(back.dx, z_MF, p_M, Results(dz_MF, dp_M, a_MF))
        if b2 is not None:
            dp_M += (dy_MH * products.spread(b2)).sum(-1).to(dp_M.dtype)
        grads = last.gradients(back, last.read(a_MF), h2, ctx.slots[2:])
        back = first.backward(dz_MF, u1, needs_dx=needs_x)
        grads = [*first.gradients(back, read, h1, ctx.slots[:2]), *grads]
        return (back.dx, dp_M, *[None] * 4, *grads, *[None] * 3)


class _Back(NamedTuple):
    """What a linear hands back."""

    dx: Tensor | None
    dh: Tensor | None
    """Gradient of the narrow products, times s."""
    g: Tensor
    """Gradient of what B gives."""
    df: Tensor | None
    """Gradient of the factors."""


class _Side:
    """One of the two linears: W x + s B A x, with d what dropout leaves of x, or D what it makes of a result.

    lora            W x + D(s B A d)              of which one alone drops
    dora            W (x - d) + f (W d + s B A d)
    """

    def __init__(self, products: "_Products", weight: Tensor, tensors: Sequence[Any], way: _Way) -> None:
        self._products, self._weight, self._way = products, weight, way
        self._a, self._b, self._factors, self._kept = tensors
        drops = self._kept is not None
        self._drops_input, self._drops_result = drops and not way.drops_result, drops and way.drops_result

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Return the result; and for the backward what A reads, s A of it, and what the factors multiply."""
        products, scale = self._products, self._way.scale
        if self._a is None:
            return products.of(x, self._weight.transpose(1, 2)), None, None, None
        read = self.read(x)
        y = products.of(x if self._factors is None else read, self._weight.transpose(1, 2))
        if self._drops_result:
            h = products.narrow(read, self._a, scale)
            return y.add_(self._drop(products.of(h, self._b.transpose(1, 2)))), read, h, None
        h = products.add_narrow(y, read, self._a, self._b, scale)
        if self._factors is None:
            return y, read, h, None
        rescaled = self._rescaled(y)
        if self._drops_input:
            rescaled += products.of(x - read, self._weight.transpose(1, 2))
        return rescaled, read, h, y

    def backward(self, dy: Tensor, u: Tensor | None, *, needs_dx: bool) -> _Back:
        """`u` is what the factors multiply."""
        products, weight = self._products, self._weight
        g, df = dy, None
        if u is not None:
            g, df = self._rescaled(dy), products.sums(dy.to(self._factors.dtype) * u)
        elif self._drops_result:
            g = self._drop(dy)
        if not (self._drops_input and needs_dx):
            dx = products.of(dy if u is None else g, weight) if needs_dx else None
            return _Back(dx, self._narrow(dx, g), g, df)
        inner = torch.zeros_like(self._kept, dtype=dy.dtype) if u is None else products.of(g - dy, weight)
        dh = self._narrow(inner, g)
        return _Back(products.of(dy, weight).add_(self._drop(inner)), dh, g, df)

    def gradients(self, back: _Back, read: Tensor | None, h: Tensor | None, slots: Sequence[Any]) -> list[Tensor | None]:
        """Return those of A, B, the factors, and of what is kept, which has none."""
        if back.dh is None:
            return [None] * 4
        assert read is not None
        assert h is not None
        da = self._products.gradient(back.dh, read, self._a, slots[0])
        return [da, self._products.gradient(back.g, h, self._b, slots[1]), back.df, None]

    def read(self, x: Tensor) -> Tensor:
        """Return what A reads."""
        return self._drop(x) if self._drops_input else x

    def _drop(self, x: Tensor) -> Tensor:
        return dropped(x, self._kept, self._way.probability)

    def _narrow(self, dx: Tensor | None, g: Tensor) -> Tensor | None:
        if self._a is None:
            return None
        return self._products.add_narrow(dx, g, self._b.transpose(1, 2), self._a.transpose(1, 2), self._way.scale)

    def _rescaled(self, x: Tensor) -> Tensor:
        # Not in 8 bits, which would let a length go its way in leaps.
        result: Tensor = (x * self._products.spread(self._factors)).to(x.dtype)
        return result


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

    def add_narrow(self, y: Tensor | None, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        """Add s b (a x) to y, if that is wanted, and return s (a x) [M, r]."""
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
        return values_EF.repeat_interleave(counts, dim=0, output_size=sum(self._counts))

    def sums(self, values_MF: Tensor) -> Tensor:
        """Return the sums of the rows of each expert, [E, F]."""
        return torch.stack([rows.sum(0) for rows in values_MF.split(self._counts)])
