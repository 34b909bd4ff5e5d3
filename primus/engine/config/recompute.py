"""Which activations are computed again in the backward instead of being kept (arXiv 2205.05198)."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["RecomputeConfig", "Stretch", "is_recomputed", "stretches"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeConfig:
    """Recomputation; gradients are the same to the bit."""

    granularity: Literal["selective", "full"] | None = None
    """`selective`: the attention core; `full`: whole layers."""
    method: Literal["uniform", "block"] | None = None
    """Full: all layers in groups, or the first layers of each stage one by one."""
    num_layers: int | None = None
    """Layers of a group (uniform), or of a stage (block)."""
    layer_ids: tuple[int, ...] = ()
    """Full without a method: exactly these layers, counted from 0 over the whole model, prediction layers behind the others."""
    experts: bool = False
    """All of a sparse layer's feed-forward half, router and exchange of tokens included."""
    distribute_saved_activations: bool = False
    """Each tensor-parallel rank keeps a slice of a recomputed layer's input."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring layers that run as one."""

    layers: tuple[int, ...]
    is_recomputed: bool
    """Only the input of the first one is kept."""


def stretches(config: RecomputeConfig, layers: range) -> tuple[Stretch, ...]:
    """Cut the layers of a stage into stretches, in order."""
    if config.granularity != "full":
        return (Stretch(tuple(layers), False),)
    if config.method == "uniform":
        size = config.num_layers or 1
        return tuple(Stretch(tuple(layers[i : i + size]), True) for i in range(0, len(layers), size))
    chosen = set(config.layer_ids) if config.method is None else set(layers[: config.num_layers])
    return tuple(Stretch((layer,), layer in chosen) for layer in layers)


def is_recomputed(config: RecomputeConfig, layers: range, number: int) -> bool:
    """Return whether layer `number` of a stage is computed again."""
    return any(stretch.is_recomputed for stretch in stretches(config, layers) if number in stretch.layers)
