"""What stands in each layer: from the description of uneven layers, or from the symbols of a hybrid."""

from primus.backends.megatron.params import Params
from primus.backends.megatron.patches.args import heterogeneous, mamba

__all__ = ["feed_forward", "mixing", "widths"]

_MIXING = {"M": "mamba", "*": "attention"}


def mixing(p: Params) -> list[str]:
    """Return the first half of each layer; empty where all have attention."""
    if mamba.is_mamba(p):
        return [_MIXING.get(symbol, "none") for symbol in mamba.pattern(p)]
    return heterogeneous.mixing(p) if heterogeneous.is_heterogeneous(p) else []


def feed_forward(p: Params) -> list[str]:
    """Return the second half of each layer; empty where all have one."""
    if mamba.is_mamba(p):
        return ["mlp" if symbol in "-E" else "none" for symbol in mamba.pattern(p)]
    return heterogeneous.feed_forward(p) if heterogeneous.is_heterogeneous(p) else []


def widths(p: Params) -> list[int]:
    """Return the width of each layer's feed-forward part; empty where they are equal."""
    return heterogeneous.widths(p) if heterogeneous.is_heterogeneous(p) else []
