"""Dtypes by the names the container uses, and the dtype of the main parameters that belongs to each."""

import torch

__all__ = ["DTYPES", "dtype_of", "main_dtype"]

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a container name; KeyError if there is none."""
    return DTYPES[name]


def main_dtype(params: torch.dtype) -> torch.dtype:
    """Return the dtype in which weights are updated: float32 for 16-bit weights, else the weights' own.

    A bf16 weight keeps 8 bits of mantissa, so an update below 1/256 of it would be lost without a main copy.
    """
    return torch.promote_types(params, torch.float32)
