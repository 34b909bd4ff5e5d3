"""Losses on the load of experts, which enter the backward beside the loss of the tokens.

For the T tokens of a microbatch on all ranks that share it (context parallel, and tensor parallel with sequence parallelism):

balance  c E / (k T^2) sum_e Q_e n_e     Q_e the sum of scores of expert e, n_e its tokens by the plain choice; c if all are
         even; over each sequence instead, and the mean of these, for `seq_aux_loss`; with n_e / T as the mean over what all
         data-parallel ranks have seen of the batch so far for `global_aux_loss`
z        c mean_t logsumexp(logits_t)^2  (arXiv 2202.08906)

A rank adds its own part; the parts of all ranks make up the loss. Objective: loss of the tokens + mean over microbatches and
data-parallel ranks of the sum of these over layers.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from primus.engine.config.moe import MoEConfig
from primus.engine.kernels.routing import balance_scores, z_loss_of
from primus.engine.model.parameter import Place
from primus.engine.parallel.collectives import all_reduce_

__all__ = ["RouterLosses", "loss_names"]

_NAMES: dict[str, str] = {
    "aux_loss": "load_balancing_loss",
    "seq_aux_loss": "seq_load_balancing_loss",
    "global_aux_loss": "global_load_balancing_loss",
}


def loss_names(config: MoEConfig) -> list[str]:
    """Return the names of a router's losses, as they are logged."""
    names = [_NAMES[kind] for kind, _ in _balances(config)]
    return names if config.z_loss_coeff is None else [*names, "z_loss"]


def _balances(config: MoEConfig) -> list[tuple[str, float]]:
    both = zip(config.router_load_balancing_type, config.aux_loss_coeff, strict=True)
    return [(kind, coefficient) for kind, coefficient in both if coefficient and kind in _NAMES]


class RouterLosses:
    """Those of one router; a step calls `begin` before its forwards."""

    def __init__(self, config: MoEConfig, place: Place) -> None:
        self._config = config
        self._groups = [place.tp, place.cp] if place.sequence_parallel else [place.cp]
        self._dp, self._streams = place.dp, place.streams
        self._parts = math.prod(group.size for group in self._groups)
        self.gradient = 1.0
        """Gradient of a loss: scale of the loss x what the averages after the backward take away."""
        self.counts_tokens = False
        """Gradients are divided by the number of tokens later: losses are multiplied by those of the microbatch."""
        self.sums: dict[str, Tensor] = {}
        """This rank's parts without coefficients since they were taken, by name."""
        self._seen: Tensor | None = None
        """[E + 1], tokens of each expert on all ranks since the batch began, and of all."""
        self._shares: deque[Tensor] = deque()
        """What forwards of this batch saw, for those that are computed again: they come in the same order."""

    def begin(self, gradient: float) -> None:
        """Start a batch."""
        self.gradient, self._seen = gradient, None
        self._shares.clear()

    def attach(self, weights_NE: Tensor, logits_SBE: Tensor, plain_NE: Tensor | None = None) -> Tensor:
        """Let the backward of the router's weights start that of its losses; `plain_NE` is the plain choice, if it is known."""
        gradient = self.gradient
        if self.counts_tokens:
            gradient *= logits_SBE.shape[0] * logits_SBE.shape[1] * self._parts
        for name, coefficient, loss in self._losses(logits_SBE, plain_NE):
            if not self._streams.is_replaying:
                known = self.sums.get(name)
                self.sums[name] = loss.detach() if known is None else known + loss.detach()
            weights_NE = _Attach.apply(weights_NE, loss, gradient * coefficient)
        return weights_NE

    def _losses(self, logits_SBE: Tensor, plain_NE: Tensor | None) -> Iterator[tuple[str, float, Tensor]]:
        c, kinds = self._config, _balances(self._config)
        if kinds:
            S, B, E = logits_SBE.shape
            scores_NE, plain_NE = balance_scores(logits_SBE.flatten(0, 1), c.router_topk, c.router_score_function, plain_NE)
            q_BE, n_BE = scores_NE.view(S, B, E).sum(0), plain_NE.view(S, B, E).sum(0)
            for group in self._groups:
                all_reduce_(n_BE, group)
            for kind, coefficient in kinds:
                yield _NAMES[kind], coefficient, self._balance(kind, q_BE, n_BE, S * self._parts)
        if c.z_loss_coeff is not None:
            yield "z_loss", c.z_loss_coeff, z_loss_of(logits_SBE.flatten(0, 1)) / self._parts

    def _balance(self, kind: str, q_BE: Tensor, n_BE: Tensor, length: int) -> Tensor:
        """Return this rank's part for sequences of `length` tokens on all its ranks."""
        B, E = q_BE.shape
        factor = E / (self._config.router_topk * length)
        if kind == "seq_aux_loss":
            return (q_BE * n_BE).sum() * (factor / length / B)
        q_E, n_E = q_BE.sum(0), n_BE.sum(0)
        if kind == "global_aux_loss":
            share_E = self._share_so_far(n_E, B * length)
            return (q_E * share_E).sum() * (factor / B)
        return (q_E * n_E).sum() * (factor / B / (B * length))

    def _share_so_far(self, n_E: Tensor, tokens: int) -> Tensor:
        if self._streams.is_replaying:
            return self._shares.popleft()
        new = all_reduce_(torch.cat((n_E, n_E.new_full((1,), tokens))), self._dp)
        self._seen = new if self._seen is None else self._seen + new
        self._shares.append(self._seen[:-1] / self._seen[-1])
        return self._shares[-1]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, loss: Tensor, gradient: float) -> Tensor:
        ctx.gradient, ctx.dtype = gradient, loss.dtype
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor) -> tuple[Tensor, Tensor, None]:
        return d_weights, torch.full((), ctx.gradient, dtype=ctx.dtype, device=d_weights.device), None
