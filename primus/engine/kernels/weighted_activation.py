"""a = p act(z) inside an expert: forward, and the backward that computes it again from z.

Objects with the two methods of `WeightedActivation` are interchangeable; `WeightedGate` has a Triton form of the same name.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config.model import Activation
from primus.engine.kernels.activation import ACTIVATIONS, GATE_SLOPES
from primus.engine.kernels.pick import Form

__all__ = ["AnyWeighted", "Results", "WeightedActivation", "WeightedGate", "weighted_activation"]


class Results(NamedTuple):
    """Where a backward writes."""

    dz: Tensor
    """Gradient of z, [M, F or 2F]."""
    dp: Tensor
    """Gradient of p, [M]."""
    a: Tensor
    """The weighted activation again, [M, F]."""


class WeightedActivation(Protocol):
    """What stands between the two products of an expert."""

    def forward(self, z_MF: Tensor, p_M: Tensor) -> Tensor:
        """Return the weighted activation of z [M, F or 2F]."""

    def backward_(self, da_MF: Tensor, z_MF: Tensor, p_M: Tensor, results: Results) -> None:
        """Fill the results; `da_MF` may be overwritten."""


def weighted_activation(name: Activation, form: Form) -> WeightedActivation:
    """Return the form of an activation; those without a gate have the portable one alone."""
    slope = GATE_SLOPES.get(name)
    if slope is None:
        return AnyWeighted(ACTIVATIONS[name])
    if form == "triton":
        from primus.engine.kernels.triton_forms import activation

        return activation.WeightedGate(slope)
    return WeightedGate(slope)


class WeightedGate:
    """A gate in few passes over memory: every product is written where it stays."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def forward(self, z_MF: Tensor, p_M: Tensor) -> Tensor:
        gate, linear = z_MF.chunk(2, dim=-1)
        gated = F.silu(gate) if self.slope == 1.0 else torch.sigmoid(gate * self.slope).mul_(gate)
        return gated.mul_(linear).mul_(p_M.unsqueeze(-1))

    def backward_(self, da_MF: Tensor, z_MF: Tensor, p_M: Tensor, results: Results) -> None:
        """With s = sigmoid(slope g) and h = g s: dp = da . h u, du = p da h, dg = p da u (s + slope h (1 - s))."""
        gate, linear = z_MF.chunk(2, dim=-1)
        d_gate, d_linear = results.dz.chunk(2, dim=-1)
        s = torch.sigmoid(gate if self.slope == 1.0 else gate * self.slope)
        torch.mul(gate, s, out=d_linear)
        torch.mul(d_linear, linear, out=results.a)
        results.dp.copy_(torch.linalg.vecdot(da_MF, results.a))
        p_M1 = p_M.unsqueeze(-1)
        results.a.mul_(p_M1)
        da_MF.mul_(p_M1)
        torch.addcmul(s, d_linear, s, value=-self.slope, out=d_gate)
        d_gate.add_(d_linear, alpha=self.slope).mul_(linear).mul_(da_MF)
        d_linear.mul_(da_MF)


class AnyWeighted:
    """Any activation, by autograd's own gradient."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        self.activation = activation

    def forward(self, z_MF: Tensor, p_M: Tensor) -> Tensor:
        return _weigh(self.activation(z_MF), p_M)

    def backward_(self, da_MF: Tensor, z_MF: Tensor, p_M: Tensor, results: Results) -> None:
        with torch.enable_grad():
            z = z_MF.detach().requires_grad_()
            plain = self.activation(z)
        results.dp.copy_(torch.linalg.vecdot(da_MF, plain.detach()))
        (dz_MF,) = torch.autograd.grad(plain, z, _weigh(da_MF, p_M))
        results.dz.copy_(dz_MF)
        results.a.copy_(_weigh(plain.detach(), p_M))


def _weigh(a_MF: Tensor, p_M: Tensor) -> Tensor:
    return (a_MF * p_M.unsqueeze(-1)).to(a_MF.dtype)
