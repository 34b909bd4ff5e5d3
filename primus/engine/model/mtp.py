"""Multi-token prediction (arXiv 2412.19437, 2.2): layer k sees what the model made of token i, and token i + k, and predicts
what is behind it.

h_0 is the model's output behind its final norm; h_k = norm(layer(W [norm(embedding of token i + k); norm(h_k-1)])). Embedding
and output layer are the model's own.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from primus.engine.kernels.segments import Mask
from primus.engine.model.embedding import Embedding
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.output import OutputLayer
from primus.engine.model.recompute import Runner
from primus.engine.model.rotary import RotaryTables

__all__ = ["Ahead", "MultiTokenPrediction", "PredictionLayer"]


class Ahead(NamedTuple):
    """What a depth reads and is held against, at the positions of this rank: all of it as many tokens ahead."""

    tokens: Tensor
    """[B, S]."""
    positions: Tensor
    """[B, S]."""
    labels: Tensor
    """[B, S]."""
    loss_mask: Tensor
    """[B, S]; zero where the sequence, or the document, ends before."""
    real: RealTokens | None = None
    """None: all are."""


class PredictionLayer(nn.Module):
    """One depth: hidden states [S, B, H] to hidden states."""

    def __init__(
        self,
        *,
        enorm: nn.Module,
        hnorm: nn.Module,
        eh_proj: nn.Module,
        transformer_layer: nn.Module,
        final_layernorm: nn.Module,
        residual_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._residual_dtype = residual_dtype
        self.enorm, self.hnorm, self.eh_proj = enorm, hnorm, eh_proj
        self.transformer_layer, self.final_layernorm = transformer_layer, final_layernorm

    def forward(
        self, hidden: Tensor, embedded: Tensor, tables: RotaryTables | None, mask: Mask, real: RealTokens | None
    ) -> Tensor:
        both = torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1)
        x = self.eh_proj(both).to(self._residual_dtype)
        out: Tensor = self.final_layernorm(self.transformer_layer(x, tables, mask, None, real))
        return out


class MultiTokenPrediction(nn.Module):
    """All depths."""

    def __init__(
        self, layers: Sequence[PredictionLayer], words: Embedding, runs: Sequence[Runner], *, owns_words: bool
    ) -> None:
        """`words` is the embedding of this rank; `owns_words`: nobody else on the rank has it. `runs` call the layers."""
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.embedding = words if owns_words else None
        # Not a second registration: it would be a second place of the same weights.
        self._words, self._runs = (words,), tuple(runs)

    def forward(
        self,
        hidden: Tensor,
        ahead: Sequence[Ahead],
        output: OutputLayer,
        tables: RotaryTables | None,
        mask: Mask,
    ) -> Tensor:
        """Return the sum of the losses of each depth, for what each reads, [depths]; with nothing to read they rest."""
        if not ahead:
            return hidden.new_empty(0)
        (words,), losses = self._words, list[Tensor]()
        for layer, run, depth in zip(self.layers, self._runs, ahead, strict=True):
            hidden = run(layer, hidden, words(depth.tokens, depth.positions), tables, mask, depth.real)
            losses.append(output(hidden, depth.labels, depth.loss_mask))
        return torch.stack(losses)
