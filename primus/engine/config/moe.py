"""Mixture of experts: which layers, how tokens choose, and what becomes of those that too many chose."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["MoEConfig"]

Balancing = Literal["aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MoEConfig:
    """Sparse feed-forward layers (arXiv 2101.03961, 2401.06066)."""

    num_experts: int | None = None
    """Experts of a sparse layer; None: all layers are dense."""
    layers: tuple[int, ...] = ()
    """Numbers of the sparse layers."""
    ffn_hidden_size: int | None = None
    """Width of an expert."""
    shared_expert_intermediate_size: int | None = None
    """Width of an expert that all tokens pass beside their own; None: there is none."""
    shared_expert_gate: bool = False
    """Its output is multiplied by the sigmoid of a product with the token."""
    shared_expert_overlap: bool = False
    """That expert works while tokens travel to the others, and not after they are back."""
    overlaps_exchange: bool = False
    """While the tokens of one microbatch travel backward, another goes forward, and the other way round."""
    token_dispatcher: Literal["allgather", "alltoall", "flex"] = "allgather"
    """All tokens to all ranks; a row for each expert of a token; or a token once to each rank that has experts of it."""
    grouped_gemm: bool = False
    """All experts of a rank are multiplied in one pass over each matrix, not one after the other."""
    use_upcycling: bool = False
    """Weights that a run takes from elsewhere are those of a dense model, whose feed-forward parts become experts."""
    router_topk: int = 2
    """Experts of a token."""
    router_dtype: Literal["float32", "float64"] | None = None
    """Dtype of the router's product; None: that of the activations."""
    router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    """How logits become scores."""
    router_pre_softmax: bool = False
    """Softmax over all experts before the choice instead of over the chosen ones after it."""
    router_num_groups: int | None = None
    """Groups of neighbouring experts; None: experts are chosen freely."""
    router_group_topk: int | None = None
    """Groups that a token chooses from."""
    router_topk_scaling_factor: float | None = None
    """Factor on the weights."""
    router_enable_expert_bias: bool = False
    """A bias on the choice that evens out the load, instead of a loss (arXiv 2408.15664)."""
    router_bias_update_rate: float = 1e-3
    """Step of that bias after each iteration."""
    router_load_balancing_type: tuple[Balancing, ...] = ("aux_loss",)
    """Losses over a microbatch, over each sequence, over the batch so far; or an even assignment; or nothing."""
    aux_loss_coeff: tuple[float, ...] = (0.0,)
    """Weight of each of these losses."""
    z_loss_coeff: float | None = None
    """Weight of the loss on large logits."""
    input_jitter_eps: float | None = None
    """The router's input is multiplied by factors from 1 - eps to 1 + eps."""
    expert_capacity_factor: float | None = None
    """An expert takes this times its even share of the tokens; None: all that come."""
    token_drop_policy: Literal["probs", "position"] = "probs"
    """Who is dropped: the smallest weights, or the latest tokens."""
    pad_expert_input_to_capacity: bool = False
    """Experts always get as many tokens as they may take."""
    per_layer_logging: bool = False
    """Losses of the load are logged for each layer as well."""
    router_force_load_balancing: Literal["even", "uniform"] | None = None
    """Logits are random, and with `even` experts take turns: for measuring, not for training."""
    router_logit_softcapping: float | None = None
    """Bound of the logits; None or 0: none."""
