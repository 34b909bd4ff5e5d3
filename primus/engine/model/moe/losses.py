"""Losses on the load of experts, which enter the backward beside the loss of the tokens.

For the T tokens of a microbatch on all ranks that share it (context parallel, and tensor parallel with sequence parallelism),
without those that only fill sequences up:

balance  c E / (k T^2) sum_e Q_e n_e     Q_e the sum of scores of expert e, n_e its tokens by the plain choice; c if all are
         even; over each sequence instead, and the mean of these, for `seq_aux_loss` (packed samples are sequences); with
         n_e / T as the mean over what all data-parallel ranks have seen of the batch so far for `global_aux_loss`
z        c mean_t logsumexp(logits_t)^2  (arXiv 2202.08906)

A rank adds its own part; the parts of all ranks make up the loss. Objective: loss of the tokens + mean over microbatches and
data-parallel ranks of the sum of these over layers. With `calculate_per_token_loss` both means, over sequences and over
microbatches, are weighted by tokens, trained or not.
"""

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from primus.engine.config.moe import MoEConfig
from primus.engine.kernels.routing import balance_scores, squared_log_sums
from primus.engine.model.moe.real import RealTokens
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
        """Losses count as often as there are tokens in the microbatch: means are taken over tokens."""
        self.sums: dict[str, Tensor] = {}
        """This rank's parts without coefficients since they were taken, by name; times tokens, if these count."""
        self._seen: Tensor | None = None
        """[E + 1], tokens of each expert on all ranks since the batch began, and of all."""
        self._shares: deque[Tensor] = deque()
        """What forwards of this batch saw, for those that are computed again: they come in the same order."""

    def begin(self, gradient: float) -> None:
        """Start a batch."""
        self.gradient, self._seen = gradient, None
        self._shares.clear()

    def attach(
        self, weights_NE: Tensor, logits_SBE: Tensor, plain_NE: Tensor | None = None, real: RealTokens | None = None
    ) -> Tensor:
        """Let the backward of the router's weights start that of its losses; `plain_NE` is the plain choice, if it is known."""
        S, B, _ = logits_SBE.shape
        lengths_K = logits_SBE.new_full((B,), S * self._parts, dtype=torch.long) if real is None else real.lengths
        for name, coefficient, loss in self._losses(logits_SBE, plain_NE, real, lengths_K):
            counted = loss * lengths_K.sum() if self.counts_tokens else loss
            if not self._streams.is_replaying:
                known = self.sums.get(name)
                self.sums[name] = counted.detach() if known is None else known + counted.detach()
            weights_NE = _Attach.apply(weights_NE, counted, self.gradient * coefficient)
        return weights_NE

    def _losses(
        self, logits_SBE: Tensor, plain_NE: Tensor | None, real: RealTokens | None, lengths_K: Tensor
    ) -> Iterator[tuple[str, float, Tensor]]:
        c, kinds = self._config, _balances(self._config)
        if kinds:
            scores_NE, plain_NE = balance_scores(logits_SBE.flatten(0, 1), c.router_topk, c.router_score_function, plain_NE)
            q_KE, n_KE = (_by_sequence(each, logits_SBE.shape[1], real) for each in (scores_NE, plain_NE))
            for group in self._groups:
                all_reduce_(n_KE, group)
            for kind, coefficient in kinds:
                yield _NAMES[kind], coefficient, self._balance(kind, q_KE, n_KE, lengths_K)
        if c.z_loss_coeff is not None:
            squares_N = squared_log_sums(logits_SBE.flatten(0, 1))
            total = squares_N.sum() if real is None else squares_N.masked_fill(~real.is_real, 0.0).sum()
            yield "z_loss", c.z_loss_coeff, total / lengths_K.sum().clamp(min=1)

    def _balance(self, kind: str, q_KE: Tensor, n_KE: Tensor, lengths_K: Tensor) -> Tensor:
        """Return this rank's part for sequences of so many tokens on all its ranks."""
        lengths_K = lengths_K.to(q_KE.dtype)
        total = lengths_K.sum().clamp(min=1)
        factor = q_KE.shape[1] / self._config.router_topk
        if kind == "seq_aux_loss":
            is_there_K = (lengths_K > 0).to(q_KE.dtype)
            shares_K = lengths_K / total if self.counts_tokens else is_there_K / is_there_K.sum().clamp(min=1)
            return ((q_KE * n_KE).sum(1) * shares_K / lengths_K.clamp(min=1).square()).sum() * factor
        q_E, n_E = q_KE.sum(0), n_KE.sum(0)
        share_E = self._share_so_far(n_E, lengths_K) if kind == "global_aux_loss" else n_E / total
        return (q_E * share_E).sum() * (factor / total)

    def _share_so_far(self, n_E: Tensor, lengths_K: Tensor) -> Tensor:
        if self._streams.is_replaying:
            return self._shares.popleft()
        new = all_reduce_(torch.cat((n_E, lengths_K.sum(0, keepdim=True).to(n_E.dtype))), self._dp)
        self._seen = new if self._seen is None else self._seen + new
        self._shares.append(self._seen[:-1] / self._seen[-1])
        return self._shares[-1]


def _by_sequence(x_NE: Tensor, sequences: int, real: RealTokens | None) -> Tensor:
    """Return the sums over the tokens of each sequence, [K, E]."""
    if real is None:
        return x_NE.view(-1, sequences, x_NE.shape[1]).sum(0)
    count = len(real.lengths)
    x_NE = x_NE.long() if x_NE.dtype == torch.bool else x_NE
    return x_NE.new_zeros(count + 1, x_NE.shape[1]).index_add(0, real.numbers, x_NE)[:count]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, loss: Tensor, gradient: float) -> Tensor:
        ctx.gradient, ctx.dtype = gradient, loss.dtype
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, d_weights: Tensor) -> tuple[Tensor, Tensor, None]:
        return d_weights, torch.full((), ctx.gradient, dtype=ctx.dtype, device=d_weights.device), None
