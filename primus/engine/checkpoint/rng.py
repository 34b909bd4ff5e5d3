"""Random states of a rank: Python, NumPy, torch, the accelerator, and the named streams; packed as plain data and tensors."""

import io
import random
from typing import Any

import numpy as np
import torch

from primus.engine.parallel.random import RandomStreams

__all__ = ["capture_rng", "pack", "restore_rng"]


def capture_rng(streams: RandomStreams, device: torch.device) -> dict[str, Any]:
    """Return every random state of this process."""
    kind, keys, *rest = np.random.get_state()
    return {
        "random_rng_state": random.getstate(),
        "np_rng_state": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "rng_tracker_states": streams.state_dict(),
    }


def restore_rng(state: dict[str, Any], streams: RandomStreams, device: torch.device) -> None:
    """Continue from states that were captured on a device of the same type."""
    random.setstate(state["random_rng_state"])
    kind, keys, *rest = state["np_rng_state"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch_rng_state"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda_rng_state"], device)
    streams.load_state_dict(state["rng_tracker_states"])


def pack(state: dict[str, Any]) -> bytes:
    """Return captured states as bytes for a file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()
