"""Triton's name of the dtype that a kernel counts in."""

from typing import Any

import torch
import triton.language as tl

__all__ = ["wide_type"]


def wide_type(dtype: torch.dtype) -> Any:
    """Return float64 for float64, else float32."""
    return tl.float64 if dtype == torch.float64 else tl.float32
