"""The one rule by which an operation gets its form.

`triton` if the configuration asks for it, the device is a GPU, Triton is installed and the kernel is made for the dtype, else
`portable`: the same function through torch. What was asked for and cannot be had is said in one line (`portable_notice`).
"""

import importlib.util
from typing import Literal

import torch

from primus.engine.config.model import FusionConfig

__all__ = ["Form", "Operation", "pick", "portable_notice"]

Form = Literal["triton", "portable"]
Operation = Literal["attention", "rms_norm", "weighted_activation", "grouped_gemm"]
_NAMES: dict[Operation, str] = {
    "attention": "attention",
    "rms_norm": "RMSNorm",
    "weighted_activation": "activation and routing weight of experts",
    "grouped_gemm": "products of experts",
}
"""Fields of the configuration that ask for a kernel, and what they are called."""
_NARROW: tuple[Operation, ...] = ("attention",)
"""Kernels for 16 bits alone: tiles of wider numbers take more shared memory than most GPUs have."""


def pick(
    operation: Operation, fusion: FusionConfig, *, device_type: str, dtype: torch.dtype, has_triton: bool | None = None
) -> Form:
    """Return the form of an operation; `has_triton` None looks."""
    is_wanted = getattr(fusion, operation)
    return "triton" if is_wanted and _obstacle(operation, device_type, dtype, has_triton) is None else "portable"


def portable_notice(fusion: FusionConfig, device_type: str, dtype: torch.dtype, has_triton: bool | None = None) -> str | None:
    """Return one line on the operations that were asked for as kernels and run in their portable form.

    None: there are none, or nothing runs at all (on the meta device).
    """
    found: dict[str, list[str]] = {}
    for operation, name in _NAMES.items():
        obstacle = _obstacle(operation, device_type, dtype, has_triton) if getattr(fusion, operation) else None
        if obstacle is not None:
            found.setdefault(obstacle, []).append(name)
    if not found or device_type == "meta":
        return None
    what = "; ".join(f"{', '.join(names)} ({obstacle})" for obstacle, names in found.items())
    return f"portable forms run instead of the kernels asked for, with the same results: {what}"


def _obstacle(operation: Operation, device_type: str, dtype: torch.dtype, has_triton: bool | None) -> str | None:
    if device_type != "cuda":
        return f"there is no GPU: this run is on {device_type}"
    if not (importlib.util.find_spec("triton") is not None if has_triton is None else has_triton):
        return "the package triton is not installed"
    return "its kernel is for 16 bits" if operation in _NARROW and dtype.itemsize > 2 else None
