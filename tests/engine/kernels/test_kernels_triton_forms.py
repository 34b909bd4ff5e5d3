"""Triton forms equal the portable ones, forward and backward, in Triton's interpreter (on a GPU: compiled)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from primus.engine.config.model import Activation
from primus.engine.kernels.attention import explicit_attention
from primus.engine.kernels.grouped_linear import product_each
from primus.engine.kernels.norm import rms_norm_reference
from primus.engine.kernels.triton_forms import activation, attention, grouped, norm
from primus.engine.kernels.weighted_activation import Results, WeightedGate, weighted_activation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [(torch.float64, 1e-13), (torch.float32, 4e-6), (torch.bfloat16, 3e-2)]
PRODUCT_DTYPES = [*DTYPES[:2], (torch.float16, 4e-3)]
"""Triton's interpreter takes the bits of bfloat16 for integers in products."""


def draw(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rms_norm(dtype: torch.dtype, tolerance: float, offset: float) -> None:
    x, dy = draw(5, 3, 20, dtype=dtype).requires_grad_(), draw(5, 3, 20, dtype=dtype, seed=1)
    weight = draw(20, dtype=dtype, seed=2).requires_grad_()
    results = []
    for form in (norm.rms_norm, rms_norm_reference):
        y = form(x, weight, 1e-5, offset)
        results.append((y, *torch.autograd.grad(y, (x, weight), dy)))
    for fused, plain in zip(*results, strict=True):
        assert fused.dtype == plain.dtype
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance)


def test_rms_norm_adds_up_the_gains_gradient_over_more_rows_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_PROGRAMS", 3)
    x, weight, dy = draw(8, 6).transpose(0, 1), draw(8, seed=1).requires_grad_(), draw(6, 8, seed=2)
    for form_grad, plain_grad in [
        tuple(torch.autograd.grad(form(x, weight, 1e-5), weight, dy)[0] for form in (norm.rms_norm, rms_norm_reference))
    ]:
        torch.testing.assert_close(form_grad, plain_grad, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["swiglu", "quick_geglu"])
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_weighted_gate(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float, name: Activation) -> None:
    # Blocks narrower than the rows, and the last one not full.
    monkeypatch.setattr(activation, "_BLOCK", 8)
    z, da, p = draw(7, 22, dtype=dtype), draw(7, 11, dtype=dtype, seed=1), draw(7, dtype=dtype, seed=2)
    triton, portable = weighted_activation(name, "triton"), weighted_activation(name, "portable")
    assert isinstance(triton, activation.WeightedGate)
    assert isinstance(portable, WeightedGate)
    torch.testing.assert_close(triton.forward(z, p), portable.forward(z, p), rtol=tolerance, atol=tolerance)
    both = [Results(*(torch.empty_like(each) for each in (z, p, da))) for _ in range(2)]
    for form, results in zip((triton, portable), both, strict=True):
        form.backward_(da.clone(), z, p, results)
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_nothing_in_gives_nothing_out() -> None:
    gate = activation.WeightedGate(1.0)
    z, p = draw(0, 8), draw(0)
    assert gate.forward(z, p).shape == (0, 4)
    gate.backward_(draw(0, 4), z, p, Results(draw(0, 8), draw(0), draw(0, 4)))
    x, weight = draw(0, 8).requires_grad_(), draw(8).requires_grad_()
    d_x, d_weight = torch.autograd.grad(norm.rms_norm(x, weight, 1e-5).sum(), (x, weight))
    assert d_x.shape == (0, 8)
    assert not d_weight.any()


@pytest.mark.parametrize(("dtype", "tolerance"), PRODUCT_DTYPES)
def test_grouped_product(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float) -> None:
    # Several tiles each way, none of them full, and an expert without rows.
    for name in ("_ROWS", "_COLUMNS", "_DEPTH"):
        monkeypatch.setattr(grouped, name, 16)
    counts = (3, 0, 20, 17)
    x, matrices = draw(sum(counts), 19, dtype=dtype), draw(4, 21, 19, dtype=dtype, seed=1).transpose(1, 2)
    results = [x.new_empty(sum(counts), 21) for _ in range(2)]
    for form, out in zip((grouped.product_each, product_each), results, strict=True):
        form(x, matrices, out, counts)
    torch.testing.assert_close(*results, rtol=tolerance, atol=4 * tolerance)
    grouped.product_each(x[:0], matrices, x.new_empty(0, 21), (0, 0, 0, 0))


@pytest.mark.parametrize(("queries", "keys", "heads", "groups", "channels"), [(21, 21, 4, 2, (6, 6)), (5, 23, 2, 2, (20, 9))])
@pytest.mark.parametrize(("dtype", "tolerance"), PRODUCT_DTYPES)
def test_causal_attention(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    tolerance: float,
    queries: int,
    keys: int,
    heads: int,
    groups: int,
    channels: tuple[int, int],
) -> None:
    # Several blocks of queries and of keys, the last ones not full.
    monkeypatch.setattr(attention, "_ROWS", 16)
    monkeypatch.setattr(attention, "_KEYS", 16)
    wide, narrow = channels
    q = draw(queries, 2, heads, wide, dtype=dtype).requires_grad_()
    k = draw(keys, 2, groups, wide, dtype=dtype, seed=1).requires_grad_()
    # Values as a view whose channels do not lie side by side.
    v = draw(keys, 2, narrow, groups, dtype=dtype, seed=2).transpose(2, 3).requires_grad_()
    d_out = draw(queries, 2, heads * narrow, dtype=dtype, seed=3)
    results = []
    for form in (attention.causal_attention, lambda q, k, v: explicit_attention(q, k, v, None)):
        out = form(q, k, v)
        results.append((out, *torch.autograd.grad(out, (q, k, v), d_out)))
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=4 * tolerance)


def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
