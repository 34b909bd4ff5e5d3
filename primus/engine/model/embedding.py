"""From token ids to the residual stream: the vocabulary table (its rows divided over ranks), learned positions, dropout."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.model.dropout import ResidualDropout
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.sharding import Sharding

__all__ = ["Embedding", "PositionEmbedding", "VocabParallelEmbedding"]


class VocabParallelEmbedding(nn.Module):
    """A table whose rows are divided over the group; ids of other ranks give zeros, so results have to be summed."""

    def __init__(self, place: Place, rows: int, width: int, *, sharding: Sharding, initial: Initial) -> None:
        """`rows` includes padding; `sharding` divides them."""
        super().__init__()
        self.weight = declare(place, (rows, width), sharding, initial)
        self.first_row = place.tp.index * self.weight.shape[0]
        self.is_whole = place.tp.size == 1

    def forward(self, ids: Tensor) -> Tensor:
        if self.is_whole:
            return F.embedding(ids, self.weight)
        row = ids - self.first_row
        foreign = (row < 0) | (row >= self.weight.shape[0])
        return F.embedding(row.masked_fill(foreign, 0), self.weight).masked_fill(foreign.unsqueeze(-1), 0.0)


class PositionEmbedding(nn.Module):
    """A learned vector for each position, whole on every rank."""

    def __init__(self, place: Place, rows: int, width: int, *, initial: Initial) -> None:
        super().__init__()
        self.weight = declare(place, (rows, width), Sharding(dim=None), initial)

    def forward(self, position_ids: Tensor) -> Tensor:
        return F.embedding(position_ids, self.weight)


class Embedding(nn.Module):
    """Tokens and positions to the residual stream [S, B, H], or this rank's slice of it under sequence parallelism."""

    def __init__(
        self,
        place: Place,
        word_embeddings: VocabParallelEmbedding,
        position_embeddings: PositionEmbedding | None,
        *,
        dropout: float,
        residual_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        self.word_embeddings, self.position_embeddings = word_embeddings, position_embeddings
        self.dropout = ResidualDropout(place, dropout)
        self.residual_dtype = residual_dtype

    def forward(self, tokens_BS: Tensor, position_ids_BS: Tensor) -> Tensor:
        x_SBH = self.word_embeddings(tokens_BS.t())
        if self.position_embeddings is not None:
            x_SBH = collectives.sum_forward(x_SBH, self.tp) + self.position_embeddings(position_ids_BS.t())
            x_SBH = collectives.scatter_sequence(x_SBH, self.tp) if self.sequence_parallel else x_SBH
        elif self.sequence_parallel:
            x_SBH = collectives.reduce_scatter_sequence(x_SBH, self.tp)
        else:
            x_SBH = collectives.sum_forward(x_SBH, self.tp)
        dropped: Tensor = self.dropout(x_SBH.to(self.residual_dtype))
        return dropped
