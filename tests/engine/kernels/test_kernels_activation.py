"""Feed-forward non-linearities: gated forms equal their formulas, gradients by finite differences."""

import math

import pytest
import torch

from primus.engine.kernels.activation import ACTIVATIONS, gelu_tanh, quick_geglu, squared_relu, swiglu, swiglu_reference

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
