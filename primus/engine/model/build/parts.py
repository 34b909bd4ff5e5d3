"""What several parts of the model are made of: norms, how matrices are filled, how layers are called."""

import math
from collections.abc import Callable
from functools import partial

from torch import nn

from primus.engine.config.model import ModelConfig
from primus.engine.model.norms import LayerNorm, RMSNorm
from primus.engine.model.parameter import Initial, Place, normal, xavier_uniform
from primus.engine.model.recompute import DistributedRecompute, Recompute, Runner, keep

__all__ = ["initial", "norm", "norm_kind", "runner"]


def norm(config: ModelConfig, place: Place) -> nn.Module:
    """Return the norm of the residual stream."""
    return norm_kind(config)(
        place,
        config.hidden_size,
        eps=config.norm_epsilon,
        one_plus=config.layernorm_1p,
        partial_grad=place.sequence_parallel,
    )


def norm_kind(config: ModelConfig) -> Callable[..., nn.Module]:
    """Return what builds the model's norms."""
    if config.normalization == "LayerNorm":
        return LayerNorm
    return partial(RMSNorm, fusion=config.fusion)


def initial(config: ModelConfig, *, deep: bool = False) -> Initial:
    """Return the rule of a matrix; `deep` ones write into the residual stream and shrink with the depth of the whole model."""
    if config.init.xavier_uniform:
        return xavier_uniform()
    depth = config.init.additions_per_layer * config.num_layers
    return normal(config.init.method_std / math.sqrt(depth) if deep else config.init.method_std)


def runner(config: ModelConfig, place: Place, *, is_recomputed: bool) -> Runner:
    """Return how layers are called whose activations are computed again, or kept."""
    if not is_recomputed:
        return keep
    distributes = config.recompute.distribute_saved_activations
    return DistributedRecompute(place.streams, place.tp) if distributes else Recompute(place.streams)
