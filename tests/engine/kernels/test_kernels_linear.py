"""The linear equals autograd's, and adds its weight gradient to a slot instead of handing it to autograd."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from primus.engine.kernels.linear import linear, linear_reference
from primus.engine.parallel.deferred import DeferredProducts
from primus.engine.parallel.slot import GradientSlot


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, nn.Parameter, nn.Parameter, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2, 5), (4, 5), (4,), (3, 2, 4))
    x, weight, bias, dy = (torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
    return x.requires_grad_(), nn.Parameter(weight), nn.Parameter(bias), dy


def test_gradients_equal_autograd() -> None:
    x, weight, bias, dy = case()
    results = []
    for form in (linear, linear_reference):
        y = form(x, weight, bias)
        results.append((y, *torch.autograd.grad(y, (x, weight, bias), dy)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_gradient_is_added_to_the_slot(dtype: torch.dtype) -> None:
    x, weight, _, dy = case(dtype)
    added: list[str] = []
    keeper = SimpleNamespace(before_add=lambda slot: None, added=lambda slot: added.append(slot.name))
    slot = GradientSlot("w", torch.full((4, 5), torch.nan), keeper, DeferredProducts())
    weight.grad_slot = slot  # type: ignore[attr-defined]
    for _ in range(2):
        linear(x, weight).backward(dy)
    assert weight.grad is None
    assert added == ["w", "w"]
    expected = 2.0 * (dy.flatten(0, 1).t().float() @ x.detach().flatten(0, 1).float())
    torch.testing.assert_close(slot.value, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-2)


def test_frozen_weights_get_no_gradient() -> None:
    x, weight, bias, dy = case()
    weight.requires_grad_(False)
    linear(x, weight, bias).backward(dy)
    assert weight.grad is None
    torch.testing.assert_close(x.grad, dy @ weight)
