"""How a sparse model is made of a dense one (arXiv 2212.05055, 2410.07524).

G neighbouring experts are the slices of one dense feed-forward part (G = its width / an expert's), R = experts / G times over.
Their routers' rows are equal at first, so that the slices of one copy are chosen together, and a token that visits G experts
starts with what the dense model made of it, up to the scale of the weights of the choice.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primus.engine.config.model import GATED_ACTIVATIONS, ModelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.model.parameter import Initial

__all__ = ["Upcycling", "repeated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Upcycling:
    """What becomes of dense layers."""

    layers: tuple[int, ...]
    experts: int
    granularity: int
    """G."""
    halves: int
    """2 for gated activations."""
    scale: float
    """Of both matrices, so that the sum over the chosen experts is as large as the dense output."""
    fresh: tuple[str, ...]
    """What routers hold that no dense checkpoint has."""
    dense: ModelConfig
    """The model that it is made of."""

    @classmethod
    def of(cls, config: ModelConfig) -> "Upcycling | None":
        """Return what the configuration asks for; None if the model starts as it is."""
        m = config.moe
        if not m.use_upcycling or m.num_experts is None or m.ffn_hidden_size is None:
            return None
        G = config.ffn_hidden_size // m.ffn_hidden_size
        is_gated = config.activation in GATED_ACTIVATIONS
        grows = m.num_experts * G / m.router_topk if m.router_pre_softmax and m.router_score_function == "softmax" else G
        # What both matrices are multiplied with comes out to the third power of gated and squared activations.
        power = 3 if is_gated or config.activation == "squared_relu" else 2
        held = {"weight": True, "bias": config.add_bias_linear, "expert_bias": m.router_enable_expert_bias}
        return cls(
            layers=m.layers,
            experts=m.num_experts,
            granularity=G,
            halves=2 if is_gated else 1,
            scale=grows ** (1 / power),
            fresh=tuple(name for name, is_held in held.items() if is_held),
            dense=replace(config, moe=MoEConfig()),
        )


def repeated(rule: Initial, times: int) -> Initial:
    """Return the rule that fills the first rows by another, and repeats each."""

    def fill(whole: Tensor, generator: torch.Generator) -> None:
        first = torch.empty_like(whole[: len(whole) // times])
        rule(first, generator)
        whole.copy_(first.repeat_interleave(times, dim=0))

    return fill
