"""`num_cores`: the processor cores that this process may use."""

import os

__all__ = ["num_cores"]


def num_cores() -> int:
    """Return the cores that the scheduler allows (fewer in a container or job), or all where a system cannot tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
