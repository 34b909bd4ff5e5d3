"""Dtypes of weights and of their main copies."""

import pytest
import torch

from primus.engine.precision import dtype_of, main_dtype


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("float64", torch.float64),
        ("float32", torch.float32),
        ("bfloat16", torch.float32),
        ("float16", torch.float32),
    ],
)
def test_only_16_bit_weights_have_a_wider_main_dtype(name: str, main: torch.dtype) -> None:
    assert main_dtype(dtype_of(name)) is main
