"""Selective state-space layers."""

from dataclasses import dataclass

__all__ = ["SCAN_CHUNK", "SHORT_TAPS", "MambaConfig"]

SHORT_TAPS = 3
"""Tokens that a short convolution sees, in all released LFM2 models."""

SCAN_CHUNK = 64
"""Tokens that a scan takes at once: products within a chunk grow with it, those between chunks shrink."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MambaConfig:
    """Mamba-2 mixers (arXiv 2405.21060)."""

    num_heads: int = 0
    """Heads; 0 in a model without such layers."""
    head_dim: int = 64
    """Channels of a head."""
    state_dim: int = 128
    """Numbers of state for each channel."""
    num_groups: int = 8
    """Groups of heads that share their maps into the state and out of it."""
    conv_width: int = 4
    """Tokens that the convolution sees."""

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def blocks(self) -> tuple[int, int, int, int, int]:
        """Rows of the input projection: gate, input, map into the state, map out of it, step size."""
        maps = self.num_groups * self.state_dim
        return self.width, self.width, maps, maps, self.num_heads
