"""The activation times a weight: the few-pass form of gates equals autograd's gradients, which any activation gets."""

import pytest
import torch

from primus.engine.config.model import Activation
from primus.engine.kernels.activation import ACTIVATIONS
from primus.engine.kernels.weighted_activation import AnyWeighted, Results, WeightedGate, weighted_activation


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation_has_its_weighted_form(name: Activation) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 10, generator=generator, dtype=torch.float64, requires_grad=True)
    p = torch.rand(6, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = ACTIVATIONS[name](z) * p.unsqueeze(-1)
    da = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    d_z, d_p = torch.autograd.grad(expected, (z, p), da)
    form = weighted_activation(name, "portable")
    assert isinstance(form, WeightedGate if name in ("swiglu", "quick_geglu") else AnyWeighted)
    torch.testing.assert_close(form.forward(z.detach(), p.detach()), expected, rtol=1e-14, atol=1e-14)
    results = Results(*(torch.empty_like(each) for each in (z, p, expected)))
    form.backward_(da, z.detach(), p.detach(), results)
    for got, right in zip(results, (d_z, d_p, expected), strict=True):
        torch.testing.assert_close(got, right, rtol=1e-13, atol=1e-13)
