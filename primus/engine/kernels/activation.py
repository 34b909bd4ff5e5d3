"""Feed-forward non-linearities. Gated ones take [..., 2F] (gate, then linear part) and return [..., F].

swiglu: silu(g) * u        quick_geglu: g * sigmoid(1.702 g) * u        squared_relu: relu(z)^2
gelu: exact, by erf        gelu_tanh: 0.5 z (1 + tanh(sqrt(2/pi) z (1 + 0.044715 z^2)))
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.config.model import Activation

__all__ = ["ACTIVATIONS", "gelu", "gelu_tanh", "quick_geglu", "squared_relu", "swiglu", "swiglu_reference"]


def swiglu(x: Tensor) -> Tensor:
    """Return silu(gate) * linear; keeps only the input for the backward."""
    out: Tensor = _GatedSigmoid.apply(x, 1.0)
    return out


def swiglu_reference(x: Tensor) -> Tensor:
    """Return silu(gate) * linear, by its formula."""
    gate, linear = x.chunk(2, dim=-1)
    return F.silu(gate) * linear


def quick_geglu(x: Tensor) -> Tensor:
    """Return gate * sigmoid(1.702 gate) * linear; keeps only the input for the backward."""
    out: Tensor = _GatedSigmoid.apply(x, 1.702)
    return out


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


class _GatedSigmoid(torch.autograd.Function):
    """g * sigmoid(slope g) * u. The exponential is the dear part (1.3 ns an element, a product 0.2), so backward takes it once.

    With s = sigmoid(slope g) and a = g s: du = dy a, dg = dy u (s + slope a (1 - s)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        gate, linear = x.chunk(2, dim=-1)
        gated = F.silu(gate) if slope == 1.0 else torch.sigmoid(gate * slope).mul_(gate)
        return gated.mul_(linear)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        gate, linear = x.chunk(2, dim=-1)
        d_gate, d_linear = dx.chunk(2, dim=-1)
        s = torch.sigmoid(gate if ctx.slope == 1.0 else gate * ctx.slope)
        torch.mul(gate, s, out=d_linear)
        torch.addcmul(s, d_linear, s, value=-ctx.slope, out=d_gate)
        d_gate.add_(d_linear, alpha=ctx.slope).mul_(linear).mul_(dy)
        d_linear.mul_(dy)
        return dx, None
