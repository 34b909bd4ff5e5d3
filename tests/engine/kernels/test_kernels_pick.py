"""One rule gives every operation its form, and what is asked for in vain is said."""

import pytest

from primus.engine.config.model import FusionConfig
from primus.engine.kernels.grouped_linear import product_each, product_form
from primus.engine.kernels.norm import rms_norm, rms_norm_form
from primus.engine.kernels.pick import Form, pick, portable_notice


@pytest.mark.parametrize(
    ("wanted", "device_type", "has_triton", "form"),
    [
        (True, "cuda", True, "triton"),
        (True, "cuda", False, "portable"),
        (True, "cpu", True, "portable"),
        (True, "cpu", False, "portable"),
        (True, "meta", True, "portable"),
        (False, "cuda", True, "portable"),
    ],
)
def test_the_rule(wanted: bool, device_type: str, has_triton: bool, form: Form) -> None:
    assert pick(wanted=wanted, device_type=device_type, has_triton=has_triton) == form


def test_portable_forms_are_the_plain_functions() -> None:
    assert rms_norm_form("portable") is rms_norm
    assert product_form("portable") is product_each


def test_one_line_names_what_runs_in_its_portable_form() -> None:
    fusion = FusionConfig(rms_norm=True, grouped_gemm=True)
    line = portable_notice(fusion, "cpu", has_triton=True)
    assert line is not None
    assert "RMSNorm, products of experts instead of the kernels" in line
    assert "this run is on cpu" in line
    missing = portable_notice(fusion, "cuda", has_triton=False)
    assert missing is not None
    assert "the package triton, which is not installed" in missing
    assert portable_notice(fusion, "cuda", has_triton=True) is None
    assert portable_notice(fusion, "meta", has_triton=True) is None, "nothing runs"
    assert portable_notice(FusionConfig(cross_entropy=True), "cpu") is None, "torch's own forms need no kernel"
