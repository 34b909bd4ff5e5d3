"""Linear attention with a state of fixed size that forgets and corrects itself."""

from dataclasses import dataclass

__all__ = ["DeltaConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaConfig:
    """Gated delta nets (arXiv 2412.06464) and Kimi delta attention (arXiv 2510.26692)."""

    num_key_heads: int = 16
    """Query and key heads."""
    num_value_heads: int = 32
    """Value heads, each with its state; a multiple of the key heads."""
    key_head_dim: int = 128
    """Channels of a query or key head."""
    value_head_dim: int = 128
    """Channels of a value head."""
    conv_width: int = 4
    """Tokens that the convolution sees."""

    @property
    def values(self) -> int:
        """Channels of all value heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def read(self) -> tuple[int, int, int]:
        """Rows of the projections that the convolution sees: queries, keys, values."""
        keys = self.num_key_heads * self.key_head_dim
        return keys, keys, self.values

    @property
    def blocks(self) -> tuple[int, int, int, int, int, int]:
        """Rows of a gated delta net's input projection: those, the output's gate, how much is written, how much is kept."""
        return *self.read, self.values, self.num_value_heads, self.num_value_heads

    @property
    def decays(self) -> int:
        """Channels that Kimi delta attention keeps apart: those of a key, for each value head."""
        return self.num_value_heads * self.key_head_dim

    @property
    def gates_down(self) -> tuple[int, int, int]:
        """Rows of Kimi delta attention's other projection: to the decay, to the output's gate, how much is written.

        The first two are as narrow as a value head, and lead on to all heads.
        """
        return self.value_head_dim, self.value_head_dim, self.num_value_heads
