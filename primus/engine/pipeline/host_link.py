"""The link between a device and host memory: `host_link` gives the one form that suits the device.

A copy that was started is waited for by the work that follows, not by the process, where the device has streams.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["HostLink", "Started", "host_link"]

Started = tuple[Tensor, Callable[[], None]]
"""Where the copy arrives, and what makes the work that follows wait for it."""


class HostLink(Protocol):
    """Copies both ways; the source must stay until the copy was waited for."""

    def start_save(self, x: Tensor) -> Started:
        """Start to copy from the device into host memory."""

    def start_load(self, x: Tensor) -> Started:
        """Start to copy from host memory onto the device."""


def host_link(device: torch.device, *, overlaps: bool) -> HostLink:
    """Return the link of a device; `overlaps`: copies to and from the host may run at the same time."""
    if device.type == "cuda":
        return _StreamLink(device, overlaps=overlaps)
    return _ShapeLink() if device.type == "meta" else _CopyLink()


class _CopyLink:
    """Host memory is the device's own: copies are made at once, into memory of their own."""

    def start_save(self, x: Tensor) -> Started:
        return x.clone(), _nothing

    def start_load(self, x: Tensor) -> Started:
        return x.clone(), _nothing


class _ShapeLink:
    """The device has no memory (a rehearsal): shapes travel, and the host's memory does not count as the device's."""

    def start_save(self, x: Tensor) -> Started:
        return torch.empty((), dtype=x.dtype).expand(x.shape), _nothing

    def start_load(self, x: Tensor) -> Started:
        return torch.empty(x.shape, dtype=x.dtype, device="meta"), _nothing


class _StreamLink:
    """Copies on streams beside the computation, into page-locked memory that the device reaches by itself."""

    def __init__(self, device: torch.device, *, overlaps: bool) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)
        self._in = torch.cuda.Stream(device) if overlaps else self._out

    def start_save(self, x: Tensor) -> Started:
        return self._start(x, torch.empty(x.shape, dtype=x.dtype, pin_memory=True), self._out)

    def start_load(self, x: Tensor) -> Started:
        # Memory of the computation's stream: whoever had it before is done when the copy waits for that stream.
        return self._start(x, torch.empty_like(x, device=self._device), self._in)

    def _start(self, x: Tensor, target: Tensor, stream: torch.cuda.Stream) -> Started:
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            target.copy_(x, non_blocking=True)
            arrived = stream.record_event()
        return target, lambda: torch.cuda.current_stream(self._device).wait_event(arrived)


def _nothing() -> None:
    """Wait for nothing."""
