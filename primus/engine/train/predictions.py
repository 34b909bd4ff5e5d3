"""`Predictions`: the losses of tokens further ahead, beside that of the next one; `further_ahead`: which tokens these are."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from primus.engine.config.mtp import MTPConfig
from primus.engine.data.loader import Batch
from primus.engine.kernels.segments import Segments
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.mtp import Ahead
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh

__all__ = ["Further", "Predictions", "further_ahead"]


class Further(NamedTuple):
    """What a microbatch lost at one depth."""

    total: Tensor
    """Sum over this rank's unmasked tokens."""
    tokens: Tensor
    """Their number."""
    whole_tokens: Tensor
    """Their number in the whole sequences."""


def further_ahead(batch: Batch, tokens: int, real: RealTokens | None = None) -> Ahead:
    """Return what a position reads and is held against that many `tokens` ahead, whole sequences [B, S].

    Its loss mask is zero where the sequence has ended by then, or the sample has, or the document: the attention mask then
    keeps the token that is read from seeing the position.
    """

    def later(x_BS: Tensor) -> Tensor:
        return torch.cat((x_BS[:, tokens:], torch.zeros_like(x_BS[:, :tokens])), dim=1)

    loss_mask = later(batch.loss_mask)
    if batch.cu_seqlens is not None:
        sample = Segments(batch.cu_seqlens, batch.tokens.device).sample
        loss_mask[:, :-tokens].masked_fill_(sample[tokens:] != sample[:-tokens], 0.0)
    elif batch.attention_mask is not None:
        ended = batch.attention_mask[:, 0].diagonal(-tokens, dim1=1, dim2=2)
        loss_mask[:, :-tokens].masked_fill_(ended, 0.0)
    further = None if real is None else real.with_further(tokens)
    return Ahead(later(batch.tokens), later(batch.position_ids), later(batch.labels), loss_mask, further)


class Predictions:
    """Weighs the losses of all depths, and adds them up for the log."""

    def __init__(self, config: MTPConfig, mesh: Mesh, *, per_token: bool) -> None:
        self._config, self._mesh, self._per_token = config, mesh, per_token
        self._sums = torch.zeros(config.num_layers, 2, dtype=torch.float64, device=mesh.device)

    def objective(self, further: Sequence[Further], share: float) -> Tensor | float:
        """Return what to add to a microbatch's objective; `share` is what its mean over tokens is multiplied by."""
        added: Tensor | float = 0.0
        for depth, each in enumerate(further):
            self._sums[depth] += torch.stack((each.total.detach(), each.tokens))
            mean = each.total if self._per_token else each.total / each.whole_tokens.clamp(min=1) * share
            added = added + mean * (self._config.loss_scaling_factor / self._config.num_layers)
        return added

    def notes(self) -> dict[str, float]:
        """Return the mean loss of a token at each depth since the last call; all ranks call it together."""
        if not self._config.num_layers:
            return {}
        for group in (self._mesh.dp_cp, self._mesh.pp):
            all_reduce_(self._sums, group)
        found = {f"mtp_{depth}_loss": total / max(count, 1.0) for depth, (total, count) in enumerate(self._sums.tolist(), 1)}
        self._sums.zero_()
        return found
