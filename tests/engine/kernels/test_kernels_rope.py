"""Rotary embedding: published anchors of the scalings, both layouts against the formula, gradients, relative positions."""

import pytest
import torch

from primus.engine.kernels.rope import (
    apply_rotary,
    apply_rotary_reference,
    llama3_frequencies,
    rotary_frequencies,
    rotary_tables,
    yarn_concentration,
    yarn_correction_range,
    yarn_frequencies,
    yarn_mscale,
)


def tables(length: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = rotary_frequencies(channels, 10000.0)
    return rotary_tables(frequencies, torch.arange(length), multiplier=1.0, dtype=torch.float64)


def test_llama3_scaling_equals_the_anchors() -> None:
    scaled = llama3_frequencies(rotary_frequencies(128, 500000.0), 8.0)
    anchors = {
        28: 3.2114460e-03,
        29: 2.1665708e-03,
        30: 1.3718936e-03,
        32: 5.2484616e-04,
        35: 9.5562124e-05,
        63: 3.0689260e-07,
    }
    for j, value in anchors.items():
        assert float(scaled[j]) == pytest.approx(value, rel=2e-6)


def test_yarn_equals_the_anchors() -> None:
    assert yarn_correction_range(64, 10000.0, 4096, 32, 1, round_to_int=True) == (10, 23)
    low, high = yarn_correction_range(64, 10000.0, 4096, 32, 1, round_to_int=False)
    assert 10 < low < 11
    assert 22 < high < 23
    assert yarn_concentration(40, 0.707, 1.0) == pytest.approx(0.9210424, rel=1e-6)
    assert yarn_concentration(40, None, 1.0) == pytest.approx(1.3688879, rel=1e-6)
    assert yarn_concentration(40, 1.0, None) == pytest.approx(1.3688879, rel=1e-6)
    assert yarn_concentration(1, 1.0, 0.0) == 1.0
    assert yarn_mscale(40, 1) ** 2 == pytest.approx(1.8738542, rel=1e-6)


def test_yarn_keeps_fast_and_divides_slow_frequencies() -> None:
    plain = rotary_frequencies(64, 10000.0)
    scaled = yarn_frequencies(plain, 40.0, 10, 23)
    torch.testing.assert_close(scaled[:11], plain[:11])
    torch.testing.assert_close(scaled[23:], plain[23:] / 40.0)
    assert torch.isfinite(yarn_frequencies(plain, 40.0, 5, 5)).all()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("channels", [8, 6], ids=["whole", "percent"])
@pytest.mark.parametrize("shape", [(5, 2, 3, 8), (5, 2, 2, 3, 8)], ids=["heads", "grouped-heads"])
def test_rotation_equals_its_formula(shape: tuple[int, ...], channels: int, interleaved: bool) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    cos, sin = tables(5, channels)
    dy = torch.randn(shape, dtype=torch.float64)
    results = []
    for form in (apply_rotary, apply_rotary_reference):
        y = form(x, cos, sin, interleaved=interleaved)
        results.append((y, *torch.autograd.grad(y, x, dy)))
    for fused, reference in zip(*results, strict=True):
        torch.testing.assert_close(fused, reference, rtol=1e-14, atol=1e-14)


def test_rotation_takes_strided_heads() -> None:
    x = torch.randn(5, 2, 3, 10, 8, dtype=torch.float64)[:, :, :, 2:7]
    cos, sin = tables(5, 8)
    expected = apply_rotary_reference(x, cos, sin, interleaved=False)
    torch.testing.assert_close(apply_rotary(x, cos, sin, interleaved=False), expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_distance_only(interleaved: bool) -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64)
    cos, sin = tables(12, 8)
    rotated_q, rotated_k = (apply_rotary(v.expand(12, 1, 8), cos, sin, interleaved=interleaved)[:, 0] for v in (q, k))
    products = rotated_q @ rotated_k.T
    for distance in range(-3, 4):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-5, atol=1e-5)


def test_layouts_differ_by_a_permutation_of_channels() -> None:
    x = torch.randn(5, 1, 8, dtype=torch.float64)
    cos, sin = tables(5, 8)
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    halves = apply_rotary(x, cos, sin, interleaved=False)
    torch.testing.assert_close(apply_rotary(x[..., order], cos, sin, interleaved=True), halves[..., order])
