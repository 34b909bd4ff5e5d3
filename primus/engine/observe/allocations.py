"""`AllocationRecord`: who allocated what in a stretch of a run, written to a file that tools can draw."""

from pathlib import Path

import torch

__all__ = ["AllocationRecord"]

_MOST_EVENTS = 1_000_000


class AllocationRecord:
    """A record that began; `write` ends it.

    On a GPU the allocator's own, a snapshot for https://pytorch.org/memory_viz. On a CPU, whose allocator keeps none, torch's
    profiler notes each allocation: a Chrome trace with `[memory]` events.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._profile: torch.profiler.profile | None = None
        if device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
        else:
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
            self._profile.start()

    def write(self, stem: Path) -> Path:
        """End the record and write it; return the file, whose suffix says what it is."""
        if self._profile is not None:
            self._profile.stop()
            file = stem.with_suffix(".pt.trace.json")
            self._profile.export_chrome_trace(str(file))
            return file
        file = stem.with_suffix(".pickle")
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
        return file
