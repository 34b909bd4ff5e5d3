"""`keep_freed_memory`: let this process reuse the memory that tensors gave back, instead of asking the kernel for fresh
pages.

glibc serves large blocks by mmap and returns them at once, so on a CPU every large temporary of a step is zeroed page by
page again. One heap that only grows costs no more at its peak, and saves about a fifth of a step on small models.
"""

import ctypes
import ctypes.util

__all__ = ["keep_freed_memory", "return_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of mallopt(3)."""
_NEVER = 2**31 - 1
_GROWTH = 64 << 20
"""Bytes by which the heap grows at a time."""


def keep_freed_memory() -> bool:
    """Set glibc's allocator; False, and nothing changed, under another one. Called before the first large allocation."""
    name = ctypes.util.find_library("c")
    mallopt = getattr(ctypes.CDLL(name), "mallopt", None) if name else None
    if mallopt is None:
        return False
    return all(mallopt(*setting) for setting in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _GROWTH)))


def return_freed_memory() -> bool:
    """Give whole free pages of the heap back to the kernel; False under another allocator than glibc's."""
    name = ctypes.util.find_library("c")
    trim = getattr(ctypes.CDLL(name), "malloc_trim", None) if name else None
    return trim is not None and bool(trim(0))
