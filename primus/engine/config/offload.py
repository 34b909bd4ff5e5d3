"""Activations that lie in host memory between forward and backward."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["OffloadConfig", "estimated_copy_time"]

_SPEEDS = {"H100": (440.0, 21.0), "H200": (440.0, 21.0), "A100": (220.0, 15.0)}
"""Of a device: TFLOP/s that training reaches, and GB/s of its link to the host."""
_LEAST_TIME = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class OffloadConfig:
    """Which activations go to the host, and what a schedule may count on."""

    tensors: Literal["attn", "all"] | None = None
    """Of each forward: queries, keys, values and output of core attention, or everything it keeps; None: nothing."""
    num_chunks: int = 0
    """First chunks of each rank to which this applies."""
    time: float | None = None
    """Group-interleaved: a copy one way, as a share of the time of its chunk's forward and gradients; None: an estimate."""
    overlaps: bool = True
    """Copies to and from the host may run at the same time."""

    @property
    def is_on(self) -> bool:
        """Whether anything may go to the host."""
        return self.tensors is not None and self.num_chunks > 0


def estimated_copy_time(hidden_size: int, seq_length: int, device: str = "") -> float:
    """Return `OffloadConfig.time` for a device by its name; one that is not listed counts as an A100.

    A layer keeps about 20 numbers of two bytes for each channel of a token, and computes 12 (6 h + s) FLOP for it
    ("PipeOffload", arXiv 2503.01328).
    """
    tflops, gigabytes = next((speed for name, speed in _SPEEDS.items() if name in device), _SPEEDS["A100"])
    there_and_back = 10 * tflops * 1000 / (3 * (6 * hidden_size + seq_length) * gigabytes)
    return max(_LEAST_TIME, 0.5 * there_and_back)
