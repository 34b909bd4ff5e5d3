"""What stands in each layer: a part that mixes tokens, a feed-forward part, or one of the two."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["BlocksConfig", "FeedForward", "LayerKind", "Mixing"]

Mixing = Literal["attention", "mamba", "gated_delta", "kimi_delta", "short_conv", "linear", "none"]
"""`gated_delta` and `kimi_delta` are linear attention, `short_conv` a gated convolution of a few tokens.

`linear`: one square matrix, which mixes no tokens; `none`: the half and its norm are not there.
"""
FeedForward = Literal["mlp", "linear", "none"]
"""`mlp` is a mixture of experts in a layer that is sparse."""


class LayerKind(NamedTuple):
    """All that tells one layer of a model from another."""

    mixing: Mixing
    feed_forward: FeedForward
    is_sparse: bool
    """Its feed-forward part is a mixture of experts."""
    ffn_hidden_size: int
    """Width of that part if it is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlocksConfig:
    """Layers that differ; without entries all have attention and a feed-forward part."""

    mixing: tuple[Mixing, ...] = ()
    """First half of each layer."""
    feed_forward: tuple[FeedForward, ...] = ()
    """Second half of each layer."""
    ffn_hidden_size: tuple[int, ...] = ()
    """Width of each layer's feed-forward part; empty: all have the model's."""

    def mixing_of(self, number: int) -> Mixing:
        """Return the first half of a layer."""
        return self.mixing[number] if self.mixing else "attention"

    def feed_forward_of(self, number: int) -> FeedForward:
        """Return the second half of a layer."""
        return self.feed_forward[number] if self.feed_forward else "mlp"

    @property
    def has_mamba(self) -> bool:
        """Whether some layer is a state-space mixer."""
        return "mamba" in self.mixing

    @property
    def runs_along(self) -> bool:
        """Whether the state of some layer runs along the sequence, token by token."""
        return not {"mamba", "gated_delta", "kimi_delta", "short_conv"}.isdisjoint(self.mixing)
