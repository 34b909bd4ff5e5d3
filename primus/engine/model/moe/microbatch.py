"""`WholeMicrobatch`: what is decided over all tokens of a microbatch, where ranks hold parts of its sequences."""

import torch
from torch import Tensor

from primus.engine.model.parameter import Place
from primus.engine.parallel.collectives import gather_sequence
from primus.engine.parallel.context import from_rank_order, own_slice

__all__ = ["WholeMicrobatch"]


class WholeMicrobatch:
    """Rows of tokens [N, E] of this rank, and of all R ranks in the order of the sequence, [R N, E]; no gradient passes."""

    def __init__(self, place: Place) -> None:
        self._cp, self._tp = place.cp, place.tp if place.sequence_parallel else None

    @torch.no_grad()
    def gather(self, x_NE: Tensor, sequences: int) -> Tensor:
        """Return everyone's rows; `sequences` is how many there are in the microbatch."""
        x_SBE = x_NE.view(-1, sequences, x_NE.shape[1])
        if self._tp is not None:
            x_SBE = gather_sequence(x_SBE, self._tp)
        x_SBE = gather_sequence(x_SBE, self._cp)
        return (from_rank_order(x_SBE, self._cp.size) if self._cp.size > 1 else x_SBE).flatten(0, 1)

    def own(self, x_AE: Tensor, sequences: int) -> Tensor:
        """Return this rank's rows of everyone's."""
        x_SBE = own_slice(x_AE.view(-1, sequences, x_AE.shape[1]), self._cp.size, self._cp.index, 0)
        if self._tp is not None:
            x_SBE = x_SBE.chunk(self._tp.size)[self._tp.index]
        return x_SBE.flatten(0, 1)
