"""Which parameters are updated alike: who decays, and whose learning rate is the embedding's or the output layer's.

A parameter is judged by its role and by its logical shape, never by the shape of the shard a rank holds, so every layout
forms the same groups.
"""

import re
from dataclasses import dataclass

from torch import nn

from primus.engine.config import OptimizerConfig
from primus.engine.optim.schedule import RateName
from primus.engine.parallel.sharding import Sharding

__all__ = ["UpdateGroup", "group_of"]

_OUTPUT = "output_layer."
_QK_NORM = re.compile(r"\.(q|k|kv)_layernorm\.")


@dataclass(frozen=True, slots=True)
class UpdateGroup:
    """Parameters with one learning rate and one weight decay."""

    rate: RateName
    decays: bool


def group_of(name: str, param: nn.Parameter, sharding: Sharding, config: OptimizerConfig) -> UpdateGroup:
    """Return the group of a parameter under its global name.

    Biases and 1-D parameters (norm gains) do not decay, but for the gains of queries and keys where these are to. Rates that
    would be equal throughout are one rate, so that neighbours in the flat buffers can be updated together. A tied table is the
    embedding, not the output layer.
    """
    decays = not name.endswith(".bias") and (param.ndim > 1 or (config.decay_qk_norms and bool(_QK_NORM.search(name))))
    rate: RateName = "default"
    if sharding.is_embedding_or_output:
        is_output = name.startswith(_OUTPUT)
        if is_output and config.head_lr_mult != 1.0:
            rate = "output"
        elif config.decoupled_lr is not None:
            rate = "output" if is_output else "embedding"
    return UpdateGroup(rate, decays)
