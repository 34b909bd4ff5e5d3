"""Which experts a token goes to, and with which weights: the arithmetic of a router, without its parameters.

N tokens, E experts, k experts a token. Scores are computed in at least fp32 and come back in the dtype of the logits. Weights
[N, E] are zero where the map [N, E] is false. Sources: arXiv 1701.06538 (top-k gating), 2101.03961 (balance loss), 2202.08906
(z-loss), 2412.19437 (sigmoid scores, expert bias, groups).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "balance_scores",
    "best",
    "even_preference",
    "keep_capacity",
    "route",
    "route_sinkhorn",
    "spread_evenly",
    "squared_log_sums",
]

Score = Literal["softmax", "sigmoid", "sqrtsoftplus"]
DropPolicy = Literal["probs", "position"]
_TINY = 1e-20
"""Keeps a sum of scores, or what a root is taken of, from being zero."""
_SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits,  # over the chosen ones, once they are
    "pre_softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: F.softplus(logits).clamp(min=_TINY).sqrt(),  # a root of zero has no gradient
}


def route(
    logits_NE: Tensor,
    k: int,
    *,
    score: Score = "softmax",
    pre_softmax: bool = False,
    groups: tuple[int, int] | None = None,
    scaling: float | None = None,
    bias_E: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return weights and map.

    Softmax weights are over the k chosen logits, or with `pre_softmax` the chosen ones of all probabilities. Those of sigmoid
    and sqrt(softplus) are the chosen scores over their sum (their own value for k = 1). `groups` is (number, best): only the
    best groups of neighbouring experts can be chosen from. `bias_E` moves the choice and not the weights. `scaling` multiplies
    the weights.
    """
    wide_NE = _widened(logits_NE)
    scores_NE = _SCORES["pre_softmax" if pre_softmax and score == "softmax" else score](wide_NE)
    choice_NE = scores_NE if bias_E is None else scores_NE + bias_E
    chosen_Nk = best(choice_NE.detach(), k, groups)
    weights_Nk = scores_NE.gather(1, chosen_Nk)
    if score != "softmax" and k > 1:
        weights_Nk = weights_Nk / (weights_Nk.sum(-1, keepdim=True) + _TINY)
    elif score == "softmax" and not pre_softmax:
        weights_Nk = weights_Nk.softmax(-1)
    if scaling:
        weights_Nk = weights_Nk * scaling
    return _spread(weights_Nk.to(logits_NE.dtype), chosen_Nk, logits_NE)


def route_sinkhorn(logits_NE: Tensor, k: int, *, preference_NE: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weights and map of the experts that are preferred, by an `even_preference` or without one by their scores.

    The weights are sigmoid(logit) for one expert a token, else the chosen ones of all probabilities.
    """
    wide_NE = _widened(logits_NE)
    scores_NE = torch.sigmoid(wide_NE) if k == 1 else wide_NE.softmax(-1)
    chosen_Nk = (scores_NE if preference_NE is None else preference_NE).detach().topk(k, dim=-1).indices
    return _spread(scores_NE.gather(1, chosen_Nk).to(logits_NE.dtype), chosen_Nk, logits_NE)


@torch.no_grad()
def even_preference(logits_NE: Tensor, tolerance: float = 1e-4) -> Tensor:
    """Return exp(logits) with rows and columns scaled until every token and every expert count alike (Sinkhorn-Knopp)."""
    cost = torch.exp(_widened(logits_NE))
    if cost.is_meta:
        return cost  # nothing can be read, and any choice is as large
    rows, columns = torch.ones(len(cost), device=cost.device), torch.ones(cost.shape[1], device=cost.device)
    change = float("inf")
    while change > tolerance:
        rows = 1 / cost.shape[0] / ((cost * columns).sum(1) + 1e-8)
        new = 1 / cost.shape[1] / ((cost * rows.unsqueeze(1)).sum(0) + 1e-8)
        change, columns = float((new - columns).abs().mean()), new
    return cost * columns * rows.unsqueeze(1)


def best(scores_NE: Tensor, k: int, groups: tuple[int, int] | None = None) -> Tensor:
    """Return the numbers [N, k] of the k best experts, in descending order of their scores.

    A group counts as the sum of its best k // best_groups scores.
    """
    if groups is not None:
        number, kept = groups
        grouped = scores_NE.unflatten(-1, (number, -1))
        rank = grouped.topk(k // kept, dim=-1).values.sum(-1)
        is_kept = torch.zeros_like(rank, dtype=torch.bool).scatter_(1, rank.topk(kept, dim=-1).indices, True)
        scores_NE = grouped.masked_fill(~is_kept.unsqueeze(-1), float("-inf")).flatten(-2)
    return scores_NE.topk(k, dim=-1).indices


def balance_scores(logits_NE: Tensor, k: int, score: Score, plain_NE: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the full-width scores of the balance loss, and the map of the plain choice (no groups, no bias).

    That map may be given, where routing has chosen so already.
    """
    wide_NE = _widened(logits_NE)
    scores_NE = _SCORES["pre_softmax" if score == "softmax" else score](wide_NE)
    if score != "softmax":
        scores_NE = scores_NE / (scores_NE.sum(-1, keepdim=True) + _TINY)
    if plain_NE is not None:
        return scores_NE, plain_NE
    chosen_Nk = scores_NE.detach().topk(k, dim=-1).indices
    return scores_NE, torch.zeros_like(logits_NE, dtype=torch.bool).scatter_(1, chosen_Nk, True)


def squared_log_sums(logits_NE: Tensor) -> Tensor:
    """Return the squares [N] of the logits' logarithmic sums, whose mean as a loss keeps them small."""
    return torch.logsumexp(_widened(logits_NE), dim=-1).square()


def keep_capacity(
    weights_NE: Tensor, map_NE: Tensor, capacity: int, *, policy: DropPolicy = "probs", pads: bool = False
) -> tuple[Tensor, Tensor]:
    """Return weights and map with at most `capacity` tokens an expert.

    `probs` keeps those of the largest weights, `position` the earliest. With `pads` every expert gets exactly so many (or all
    tokens, if there are fewer): those that it did not choose have weight zero. Nothing is divided anew.
    """
    count = min(capacity, len(weights_NE))
    if policy == "probs":
        order_NE = weights_NE.detach()
    else:
        order_NE = torch.arange(len(map_NE), 0, -1, device=map_NE.device).unsqueeze(-1) * map_NE
    filled = torch.zeros_like(map_NE).scatter_(0, order_NE.topk(count, dim=0).indices, True)
    kept = filled & map_NE
    return weights_NE * kept, filled if pads else kept


def spread_evenly(weights_NE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return weights and map with the weights of each token, the largest first, on the k experts that are next in turn."""
    N, E = weights_NE.shape
    turn_Nk = (torch.arange(N * k, device=weights_NE.device) % E).view(N, k)
    return _spread(weights_NE.topk(k, dim=-1).values, turn_Nk, weights_NE)


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _spread(weights_Nk: Tensor, chosen_Nk: Tensor, like_NE: Tensor) -> tuple[Tensor, Tensor]:
    weights_NE = torch.zeros_like(like_NE).scatter(1, chosen_Nk, weights_Nk)
    return weights_NE, torch.zeros_like(like_NE, dtype=torch.bool).scatter_(1, chosen_Nk, True)
