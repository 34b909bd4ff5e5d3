"""Random states of a rank: Python, NumPy, torch, the accelerator, and the named streams."""

import random
from typing import Any

import numpy as np
import torch

from primus.engine.parallel.random import RandomStreams

__all__ = ["capture_rng", "restore_rng"]


def capture_rng(streams: RandomStreams, device: torch.device) -> dict[str, Any]:
    """Return every random state of this process."""
    return {
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "cuda_rng_state": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "rng_tracker_states": streams.state_dict(),
    }


def restore_rng(state: dict[str, Any], streams: RandomStreams, device: torch.device) -> None:
    """Continue from captured states."""
    random.setstate(state["random_rng_state"])
    np.random.set_state(state["np_rng_state"])
    torch.set_rng_state(state["torch_rng_state"])
    if device.type == "cuda" and state["cuda_rng_state"] is not None:
        torch.cuda.set_rng_state(state["cuda_rng_state"], device)
    streams.load_state_dict(state["rng_tracker_states"])
