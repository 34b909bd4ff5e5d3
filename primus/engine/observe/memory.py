"""Memory of this process, in bytes: the device allocator's figures, or the resident set on a CPU."""

import torch

from primus.engine.device_memory import peak_bytes

__all__ = ["memory_bytes"]


def memory_bytes(device: torch.device) -> dict[str, int]:
    """Return figures by TensorBoard tag. On a CPU the largest resident set so far stands for the allocator."""
    if device.type == "cuda":
        return {
            "mem-reserved-bytes": torch.cuda.memory_reserved(device),
            "mem-allocated-bytes": torch.cuda.memory_allocated(device),
            "mem-max-allocated-bytes": peak_bytes(device),
        }
    return {"mem-max-resident-bytes": peak_bytes(device)}
