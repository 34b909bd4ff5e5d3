"""`deterministic_mode`: the same sums in the same order each time, or an error where torch has no such kernel."""

import os

import torch

from primus.errors import InputError

__all__ = ["be_deterministic"]

_NCCL_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
"""Their sums have one order on one topology."""


def be_deterministic() -> None:
    """Choose deterministic kernels for this process, before it uses a device.

    The environment may choose others of equal worth; InputError if it chooses an NCCL algorithm without an order.
    """
    chosen = os.environ.setdefault("NCCL_ALGO", "Ring")
    if chosen not in _NCCL_ALGORITHMS:
        raise InputError(
            f"deterministic_mode: the environment sets NCCL_ALGO={chosen}; unset it, or use {', '.join(_NCCL_ALGORITHMS)}"
        )
    # cuBLAS picks its workspace, and with it the order of its sums, by stream unless it is told a size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
