"""The router: a product with one row an expert, and the choice that follows from it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from primus.engine.config.moe import MoEConfig
from primus.engine.kernels.routing import balance_scores, keep_capacity, route, route_sinkhorn, soft_cap, z_loss_of
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["Router", "Routing"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Where N tokens go among E experts."""

    weights_NE: Tensor
    map_NE: Tensor
    losses: dict[str, Tensor]
    """Losses of the load by name, with their coefficients."""


class Router(nn.Module):
    """Chooses experts for tokens [S, B, H]."""

    def __init__(self, place: Place, config: MoEConfig, hidden: int, *, initial: Initial) -> None:
        super().__init__()
        assert config.num_experts is not None
        self.config = config
        sharding = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.weight = declare(place, (config.num_experts, hidden), sharding, initial)
        zeros = torch.zeros(config.num_experts, device=place.device) if config.router_enable_expert_bias else None
        self.register_buffer("expert_bias", zeros)
        self.register_buffer("local_tokens_per_expert", zeros if zeros is None else zeros.clone(), persistent=False)

    def forward(self, x_SBH: Tensor) -> Routing:
        S, B, _ = x_SBH.shape
        logits_NE = soft_cap(self._logits(x_SBH.flatten(0, 1)), self.config.router_logit_softcapping)
        weights_NE, map_NE = self._choose(logits_NE)
        if self.config.expert_capacity_factor is not None and self.config.expert_capacity_factor >= 0:
            weights_NE, map_NE = self._limit(weights_NE, map_NE)
        losses = self._losses(logits_NE, S, B) if self.training and torch.is_grad_enabled() else {}
        if self.expert_bias is not None and torch.is_grad_enabled():
            self.local_tokens_per_expert += map_NE.sum(0)
        return Routing(weights_NE, map_NE, losses)

    def _logits(self, x_NH: Tensor) -> Tensor:
        eps = self.config.input_jitter_eps
        if eps:
            x_NH = x_NH * torch.empty_like(x_NH).uniform_(1.0 - eps, 1.0 + eps)
        dtype = getattr(torch, self.config.router_dtype) if self.config.router_dtype else x_NH.dtype
        return x_NH.to(dtype) @ self.weight.to(dtype).t()

    def _choose(self, logits_NE: Tensor) -> tuple[Tensor, Tensor]:
        c = self.config
        if c.router_load_balancing_type == "sinkhorn":
            return route_sinkhorn(logits_NE, c.router_topk, balances=self.training)
        return route(
            logits_NE,
            c.router_topk,
            score=c.router_score_function,
            pre_softmax=c.router_pre_softmax,
            groups=(c.router_num_groups or 1, c.router_group_topk) if c.router_group_topk else None,
            scaling=c.router_topk_scaling_factor,
            bias_E=self.expert_bias,
        )

    def _limit(self, weights_NE: Tensor, map_NE: Tensor) -> tuple[Tensor, Tensor]:
        c = self.config
        assert c.expert_capacity_factor is not None
        N, E = map_NE.shape
        capacity = math.ceil(N * c.router_topk / E * c.expert_capacity_factor)
        return keep_capacity(weights_NE, map_NE, capacity, policy=c.token_drop_policy, pads=c.pad_expert_input_to_capacity)

    def _losses(self, logits_NE: Tensor, S: int, B: int) -> dict[str, Tensor]:
        c, losses = self.config, dict[str, Tensor]()
        if c.aux_loss_coeff and c.router_load_balancing_type in ("aux_loss", "seq_aux_loss"):
            scores_NE, plain_NE = balance_scores(logits_NE, c.router_topk, c.router_score_function)
            sequences, tokens = (B, S) if c.router_load_balancing_type == "seq_aux_loss" else (1, S * B)
            E = logits_NE.shape[1]
            q, n = (x.view(tokens, sequences, E).sum(0) for x in (scores_NE, plain_NE))
            factor = c.aux_loss_coeff * E / (c.router_topk * tokens * tokens) / sequences
            losses[c.router_load_balancing_type] = (q * n).sum() * factor
        if c.z_loss_coeff:
            losses["z_loss"] = c.z_loss_coeff * z_loss_of(logits_NE)
        return losses
