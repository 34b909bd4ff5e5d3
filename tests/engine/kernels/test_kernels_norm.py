"""Norms: the few-pass form equals the formula, forward and backward; statistics are wide; gradients by finite differences."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from primus.engine.kernels.norm import l2_norm, layer_norm, rms_norm, rms_norm_reference


def inputs(dtype: torch.dtype, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(shape[-1], generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return x, weight, torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_rms_norm_equals_its_formula(dtype: torch.dtype, tolerance: float, offset: float) -> None:
    x, weight, dy = inputs(dtype, 5, 3, 16)
    results = []
    for form in (rms_norm, rms_norm_reference):
        y = form(x, weight, 1e-5, offset)
        results.append((y, *torch.autograd.grad(y, (x, weight), dy)))
    for fused, reference in zip(*results, strict=True):
        torch.testing.assert_close(fused, reference, rtol=tolerance, atol=tolerance)


def test_rms_norm_takes_strided_input() -> None:
    x, weight, _ = inputs(torch.float64, 4, 6, 8)
    view = x[:, ::2]
    torch.testing.assert_close(rms_norm(view, weight, 1e-5), rms_norm_reference(view, weight, 1e-5))


def test_rms_norm_gradients_by_finite_differences() -> None:
    x, weight, _ = inputs(torch.float64, 3, 2, 5)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-5, 1.0), (x, weight))


def test_norms_return_the_weights_dtype_and_keep_wide_statistics() -> None:
    x = torch.full((1, 8), 300.0, dtype=torch.float16)
    weight = torch.ones(8, dtype=torch.float16)
    # 300^2 overflows fp16; its statistics do not.
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), torch.ones_like(x))
    assert rms_norm(x.float(), weight, 1e-5).dtype == torch.float16
    assert layer_norm(x.float(), weight, weight, 1e-5).dtype == torch.float16
    torch.testing.assert_close(l2_norm(x, 1e-5), torch.ones_like(x))


def test_layer_norm_equals_the_library_with_shifted_gain() -> None:
    x, weight, _ = inputs(torch.float64, 4, 8)
    bias = torch.arange(8, dtype=torch.float64)
    torch.testing.assert_close(layer_norm(x, weight, bias, 1e-5, 1.0), F.layer_norm(x, (8,), weight + 1.0, bias, 1e-5))


def test_l2_norm_gives_unit_mean_square() -> None:
    x, _, _ = inputs(torch.float64, 4, 8)
    torch.testing.assert_close(l2_norm(x, 0.0).square().mean(-1), torch.ones(4, dtype=torch.float64))
