"""Feed-forward non-linearities: gated forms equal their formulas, gradients by finite differences."""

import math

import pytest
import torch

from primus.engine.config.model import Activation
from primus.engine.kernels.activation import (
    ACTIVATIONS,
    gated_variant,
    gelu_tanh,
    quick_geglu,
    squared_relu,
    swiglu,
    swiglu_reference,
)

X = torch.linspace(-4, 4, 24, dtype=torch.float64).view(2, 12).requires_grad_()


def test_swiglu_equals_its_formula() -> None:
    dy = torch.randn(2, 6, dtype=torch.float64)
    torch.testing.assert_close(swiglu(X), swiglu_reference(X), rtol=1e-14, atol=1e-14)
    fused, reference = (torch.autograd.grad(form(X), X, dy)[0] for form in (swiglu, swiglu_reference))
    torch.testing.assert_close(fused, reference, rtol=1e-13, atol=1e-13)


def test_quick_geglu_equals_its_formula() -> None:
    gate, linear = X.chunk(2, -1)
    torch.testing.assert_close(quick_geglu(X), gate * torch.sigmoid(1.702 * gate) * linear)


def test_squared_relu_and_tanh_gelu_equal_their_formulas() -> None:
    torch.testing.assert_close(squared_relu(X), torch.where(X > 0, X * X, 0.0))
    tanh = 0.5 * X * (1 + torch.tanh(math.sqrt(2 / math.pi) * X * (1 + 0.044715 * X * X)))
    torch.testing.assert_close(gelu_tanh(X), tanh)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_by_finite_differences(name: str) -> None:
    assert torch.autograd.gradcheck(ACTIVATIONS[name], ((X.detach() + 0.01).requires_grad_(),))


@pytest.mark.parametrize(("name", "slope"), [("swiglu", 1.0), ("quick_geglu", 1.702)])
def test_a_gated_variant_equals_its_formula(name: Activation, slope: float) -> None:
    variant, dy = gated_variant(name, clamp=2.0, offset=1.0), torch.randn(2, 6, dtype=torch.float64)

    def formula(x: torch.Tensor) -> torch.Tensor:
        gate, linear = x.chunk(2, -1)
        gate, linear = gate.clamp(max=2.0), linear.clamp(-2.0, 2.0)
        return gate * torch.sigmoid(slope * gate) * (linear + 1.0)

    x = (X.detach() * torch.tensor([1.0, -1.0], dtype=torch.float64)[:, None]).requires_grad_()
    torch.testing.assert_close(variant(x), formula(x), rtol=1e-13, atol=1e-13)
    ours, theirs = (torch.autograd.grad(form(x), x, dy)[0] for form in (variant, formula))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert (ours == 0).any()


def test_a_gated_variant_without_a_clamp_adds_its_offset_alone() -> None:
    gate, _ = X.chunk(2, -1)
    torch.testing.assert_close(
        gated_variant("swiglu", clamp=None, offset=0.5)(X), swiglu(X) + 0.5 * torch.nn.functional.silu(gate)
    )
