"""The router: a product with one row an expert, and the choice that follows from it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from primus.engine.config.moe import MoEConfig
from primus.engine.kernels.routing import even_preference, keep_capacity, route, route_sinkhorn, spread_evenly
from primus.engine.kernels.soft_cap import soft_cap
from primus.engine.model.moe.losses import RouterLosses
from primus.engine.model.moe.microbatch import WholeMicrobatch
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["Router", "Routing"]


class Routing(NamedTuple):
    """Where N tokens go among E experts."""

    weights: Tensor
    """[N, E], whose backward also starts the losses of the load."""
    map: Tensor
    """[N, E], true where a token goes; what only fills sequences up goes nowhere, but where fixed shapes want it."""


class Router(nn.Module):
    """Chooses experts for tokens [S, B, H]."""

    expert_bias: Tensor | None
    """[E], fp32, moves the choice; saved with the weights."""
    tokens_per_expert: Tensor | None
    """[E], what experts got on this rank since the bias moved."""

    def __init__(self, place: Place, config: MoEConfig, hidden: int, *, initial: Initial, initial_bias: Initial | None) -> None:
        """Without `initial_bias` logits have no bias; `expert_bias` is another thing."""
        super().__init__()
        assert config.num_experts is not None
        self.config, self.streams = config, place.streams
        sharding = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.weight = declare(place, (config.num_experts, hidden), sharding, initial)
        self.bias = None if initial_bias is None else declare(place, (config.num_experts,), sharding, initial_bias)
        zeros = torch.zeros(config.num_experts, device=place.device) if config.router_enable_expert_bias else None
        self.register_buffer("expert_bias", zeros)
        self.register_buffer("tokens_per_expert", zeros if zeros is None else zeros.clone(), persistent=False)
        self.losses = RouterLosses(config, place)
        # Then its losses need no choice of their own.
        is_free = config.router_group_topk is None and "sinkhorn" not in config.router_load_balancing_type
        self._chooses_plainly = is_free and not config.router_enable_expert_bias
        self._microbatch = WholeMicrobatch(place)
        self._divides = place.tp if place.sequence_parallel else None

    def forward(self, x_SBH: Tensor, real: RealTokens | None = None) -> Routing:
        """Return where tokens go; `real` is that of the ranks that share this one's part of the sequences, None: all are."""
        S, B, _ = x_SBH.shape
        if real is not None and self._divides is not None:
            real = real.on_tensor_rank(self._divides)
        logits_NE = self._logits(x_SBH.flatten(0, 1))
        if self.config.router_force_load_balancing:
            with self.streams.fork("router"):
                noise_NE = torch.randn_like(logits_NE)
            # The gradient passes as if nothing had happened.
            logits_NE = noise_NE + (logits_NE - logits_NE.detach())
        logits_NE = soft_cap(logits_NE, self.config.router_logit_softcapping)
        weights_NE, chosen_NE = _of_real(*self._choose(logits_NE, B, real), real)
        map_NE = chosen_NE
        if self.config.expert_capacity_factor is not None:
            weights_NE, map_NE = self._limit(weights_NE, map_NE, self.config.expert_capacity_factor, B, real)
        if self.training and torch.is_grad_enabled():
            plain_NE = chosen_NE if self._chooses_plainly else None
            weights_NE = self.losses.attach(weights_NE, logits_NE.view(S, B, -1), plain_NE, real)
            if self.tokens_per_expert is not None and not self.streams.is_replaying:
                # Tokens that only fill an expert up would hide who is short of them.
                self.tokens_per_expert += (map_NE & chosen_NE).sum(0)
        if self.config.router_force_load_balancing == "even":
            weights_NE, map_NE = _of_real(*spread_evenly(weights_NE, self.config.router_topk), real)
        return Routing(weights_NE, map_NE)

    def forget(self) -> None:
        """Let what forwards have counted so far be nothing."""
        self.losses.sums.clear()
        if self.tokens_per_expert is not None:
            self.tokens_per_expert.zero_()

    def _logits(self, x_NH: Tensor) -> Tensor:
        eps = self.config.input_jitter_eps
        if eps and self.training:
            with self.streams.fork("router"):
                x_NH = x_NH * torch.empty_like(x_NH).uniform_(1.0 - eps, 1.0 + eps)
        dtype = getattr(torch, self.config.router_dtype) if self.config.router_dtype else x_NH.dtype
        logits_NE = x_NH.to(dtype) @ self.weight.to(dtype).t()
        return logits_NE if self.bias is None else logits_NE + self.bias.to(dtype)

    def _choose(self, logits_NE: Tensor, sequences: int, real: RealTokens | None) -> tuple[Tensor, Tensor]:
        c = self.config
        if "sinkhorn" in c.router_load_balancing_type:
            even_NE = self._even_preference(logits_NE, sequences, real) if self.training else None
            return route_sinkhorn(logits_NE, c.router_topk, preference_NE=even_NE)
        return route(
            logits_NE,
            c.router_topk,
            score=c.router_score_function,
            pre_softmax=c.router_pre_softmax,
            groups=(c.router_num_groups or 1, c.router_group_topk) if c.router_group_topk else None,
            scaling=c.router_topk_scaling_factor,
            bias_E=self.expert_bias,
        )

    def _even_preference(self, logits_NE: Tensor, sequences: int, real: RealTokens | None) -> Tensor:
        whole = self._microbatch
        logits_AE = whole.gather(logits_NE, sequences)
        if real is None:
            return whole.own(even_preference(logits_AE), sequences)
        is_real_A = whole.gather(real.is_real.unsqueeze(1).to(torch.uint8), sequences).squeeze(1).bool()
        even_AE = torch.zeros_like(logits_AE, dtype=torch.promote_types(logits_AE.dtype, torch.float32))
        even_AE[is_real_A] = even_preference(logits_AE[is_real_A])
        return whole.own(even_AE, sequences)

    def _limit(
        self, weights_NE: Tensor, map_NE: Tensor, factor: float, sequences: int, real: RealTokens | None
    ) -> tuple[Tensor, Tensor]:
        """Let an expert take so many times its even share of the microbatch; of this rank's tokens, where shapes are fixed."""
        c, whole = self.config, self._microbatch
        N, E = map_NE.shape
        if c.pad_expert_input_to_capacity:
            own = N if real is None else int(real.is_real.sum())
            capacity = math.ceil(own * c.router_topk / E * factor)
            return keep_capacity(weights_NE, map_NE, capacity, policy=c.token_drop_policy, pads=True)
        weights_AE, map_AE = (whole.gather(each, sequences) for each in (weights_NE, map_NE.to(torch.uint8)))
        total = len(map_AE) if real is None else int(real.lengths.sum())
        capacity = math.ceil(total * c.router_topk / E * factor)
        _, kept_AE = keep_capacity(weights_AE, map_AE.bool(), capacity, policy=c.token_drop_policy)
        kept_NE = whole.own(kept_AE, sequences)
        return weights_NE * kept_NE, kept_NE


def _of_real(weights_NE: Tensor, map_NE: Tensor, real: RealTokens | None) -> tuple[Tensor, Tensor]:
    """Return weights and map without those of tokens that only fill sequences up."""
    if real is None:
        return weights_NE, map_NE
    is_real_N1 = real.is_real.unsqueeze(1)
    return weights_NE.masked_fill(~is_real_N1, 0.0), map_NE & is_real_N1
