"""One rule gives every operation its form, and what is asked for in vain is said."""

import pytest
import torch

from primus.engine.config.model import FusionConfig
from primus.engine.kernels.grouped_linear import product_each, product_form
from primus.engine.kernels.norm import rms_norm, rms_norm_form
from primus.engine.kernels.pick import Form, Operation, pick, portable_notice

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
ALL = FusionConfig(attention=True, rms_norm=True, weighted_activation=True, grouped_gemm=True)


@pytest.mark.parametrize(
    ("operation", "device_type", "dtype", "has_triton", "form"),
    [
        ("rms_norm", "cuda", BF16, True, "triton"),
        ("rms_norm", "cuda", FP32, True, "triton"),
        ("rms_norm", "cuda", FP64, True, "triton"),
        ("rms_norm", "cuda", BF16, False, "portable"),
        ("rms_norm", "cpu", BF16, True, "portable"),
        ("rms_norm", "cpu", FP32, False, "portable"),
        ("rms_norm", "meta", BF16, True, "portable"),
        ("weighted_activation", "cuda", FP32, True, "triton"),
        ("grouped_gemm", "cuda", FP32, True, "triton"),
        ("attention", "cuda", BF16, True, "triton"),
        ("attention", "cuda", FP32, True, "portable"),
        ("attention", "cpu", BF16, True, "portable"),
    ],
)
def test_the_rule(operation: Operation, device_type: str, dtype: torch.dtype, has_triton: bool, form: Form) -> None:
    assert pick(operation, ALL, device_type=device_type, dtype=dtype, has_triton=has_triton) == form
    assert pick(operation, FusionConfig(), device_type=device_type, dtype=dtype, has_triton=has_triton) == "portable"


def test_portable_forms_are_the_plain_functions() -> None:
    assert rms_norm_form("portable") is rms_norm
    assert product_form("portable") is product_each


def test_one_line_names_what_runs_in_its_portable_form() -> None:
    fusion = FusionConfig(attention=True, grouped_gemm=True)
    cpu, bare = portable_notice(fusion, "cpu", BF16, has_triton=True), portable_notice(fusion, "cuda", BF16, has_triton=False)
    assert cpu is not None
    assert cpu.endswith("attention, products of experts (there is no GPU: this run is on cpu)")
    assert bare is not None
    assert bare.endswith("attention, products of experts (the package triton is not installed)")
    wide = portable_notice(fusion, "cuda", FP32, has_triton=True)
    assert wide is not None
    assert wide.endswith(": attention (its kernel is for 16 bits)")
    assert portable_notice(fusion, "cuda", BF16, has_triton=True) is None
    assert portable_notice(fusion, "meta", BF16, has_triton=True) is None, "nothing runs"
    assert portable_notice(FusionConfig(cross_entropy=True), "cpu", BF16) is None, "torch's own forms need no kernel"
