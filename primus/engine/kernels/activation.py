"""Feed-forward non-linearities. Gated ones take [..., 2F] (gate, then linear part) and return [..., F].

swiglu: silu(g) * u        quick_geglu: g * sigmoid(1.702 g) * u        squared_relu: relu(z)^2
gelu: exact, by erf        gelu_tanh: 0.5 z (1 + tanh(sqrt(2/pi) z (1 + 0.044715 z^2)))

`gated_variant` are the gated ones with g cut off above, u on both sides, and a number added to u, as GPT-OSS has them.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.config.model import Activation

__all__ = [
    "ACTIVATIONS",
    "GATE_SLOPES",
    "gated_variant",
    "gelu",
    "gelu_tanh",
    "quick_geglu",
    "squared_relu",
    "swiglu",
    "swiglu_reference",
]

GATE_SLOPES: dict[Activation, float] = {"swiglu": 1.0, "quick_geglu": 1.702}
"""Gates g sigmoid(slope g) u, by name."""


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * linear; keeps only the input for the backward."""
    return _gated_sigmoid(x, slope=1.0)


def swiglu_reference(x: Tensor) -> Tensor:
    """Return silu(gate) * linear, by its formula."""
    gate, linear = x.chunk(2, dim=-1)
    return F.silu(gate) * linear


def quick_geglu(x: Tensor) -> Tensor:
    """Return gate * sigmoid(1.702 gate) * linear; keeps only the input for the backward."""
    return _gated_sigmoid(x, slope=1.702)


def squared_relu(x: Tensor) -> Tensor:
    """Return relu(x)^2 (arXiv 2109.08668)."""
    return F.relu(x).square()


def gelu(x: Tensor) -> Tensor:
    """Return the exact gelu."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the tanh approximation of gelu."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "swiglu": swiglu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_geglu": quick_geglu,
    "squared_relu": squared_relu,
}


def gated_variant(activation: Activation, *, clamp: float | None, offset: float) -> Callable[[Tensor], Tensor]:
    """Return a gated activation of min(g, clamp) and of u between +-clamp, plus offset; None clamps nothing."""
    return partial(_gated_sigmoid, slope=GATE_SLOPES[activation], clamp=math.inf if clamp is None else clamp, offset=offset)


def _gated_sigmoid(x: Tensor, *, slope: float, clamp: float = math.inf, offset: float = 0.0) -> Tensor:
    out: Tensor = _GatedSigmoid.apply(x, slope, clamp, offset)
    return out


class _GatedSigmoid(torch.autograd.Function):
    """g * sigmoid(slope g) * u. The exponential is the dear part (1.3 ns an element, a product 0.2), so backward takes it once.

    With s = sigmoid(slope g) and a = g s: du = dy a, dg = dy u (s + slope a (1 - s)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float, clamp: float, offset: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope, ctx.clamp, ctx.offset = slope, clamp, offset
        gate, linear = _limited(x, clamp, offset)
        gated = F.silu(gate) if slope == 1.0 else torch.sigmoid(gate * slope).mul_(gate)
        return gated.mul_(linear)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        gate, linear = _limited(x, ctx.clamp, ctx.offset)
        d_gate, d_linear = dx.chunk(2, dim=-1)
        s = torch.sigmoid(gate if ctx.slope == 1.0 else gate * ctx.slope)
        torch.mul(gate, s, out=d_linear)
        torch.addcmul(s, d_linear, s, value=-ctx.slope, out=d_gate)
        d_gate.add_(d_linear, alpha=ctx.slope).mul_(linear).mul_(dy)
        d_linear.mul_(dy)
        if ctx.clamp != math.inf:
            raw_gate, raw_linear = x.chunk(2, dim=-1)
            d_gate.masked_fill_(raw_gate > ctx.clamp, 0.0)
            d_linear.masked_fill_(raw_linear.abs() > ctx.clamp, 0.0)
        return dx, None, None, None


def _limited(x: Tensor, clamp: float, offset: float) -> tuple[Tensor, Tensor]:
    """Return gate and linear half as they enter the product: views where nothing is to be done."""
    gate, linear = x.chunk(2, dim=-1)
    if clamp != math.inf:
        gate, linear = gate.clamp(max=clamp), linear.clamp(-clamp, clamp)
    return gate, linear + offset if offset else linear
