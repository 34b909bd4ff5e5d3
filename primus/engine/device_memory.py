"""This rank's accelerator and its memory in bytes, or that of the host where the CPU computes."""

import os
import resource

import torch

from primus.engine.host_memory import return_freed_memory

__all__ = ["device_name", "peak_bytes", "return_cached", "total_bytes"]


def device_name(device: torch.device) -> str:
    """Return what the vendor calls an accelerator; nothing for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def peak_bytes(device: torch.device) -> int:
    """Return the most that was in use so far: by the device's allocator, or by the process as resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def total_bytes(device: torch.device) -> int:
    """Return what this rank may use: a device of its own, or a share of the host like those of its other ranks."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks


def return_cached(device: torch.device) -> None:
    """Give back what the allocator keeps of freed memory, so that others can have it; the next step asks for it anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        return_freed_memory()
