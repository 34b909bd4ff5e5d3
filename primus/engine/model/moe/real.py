"""`RealTokens`: which tokens of a microbatch say something, of which sequence each is, and which only fill sequences up.

Routers go by it: what fills up goes to no expert and counts in no loss. Packed samples are sequences of their own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.kernels.segments import Segments
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Group

__all__ = ["RealTokens"]


@dataclass(frozen=True, slots=True)
class RealTokens:
    """The tokens of a rank among K sequences, which it may share with others."""

    sequence: Tensor
    """Number of the sequence of each token, [S, B], int64; K if it only fills up."""
    lengths: Tensor
    """Real tokens of each sequence on all ranks that share it, [K], int64."""

    @classmethod
    def of(cls, padding_BS: Tensor, samples: Segments | None) -> "RealTokens":
        """Return those of whole sequences; `padding_BS` is true where a token only fills up."""
        if samples is None:
            count = len(padding_BS)
            sequence_BS = torch.arange(count, device=padding_BS.device).unsqueeze(1).expand_as(padding_BS)
        else:
            count, sequence_BS = len(samples.bounds) - 1, samples.sample.unsqueeze(0)
        return cls._counted(sequence_BS.masked_fill(padding_BS, count).t(), count)

    @classmethod
    def _counted(cls, sequence_SB: Tensor, count: int) -> "RealTokens":
        flat = sequence_SB.reshape(-1)
        return cls(sequence_SB, flat.new_zeros(count + 1).index_add_(0, flat, torch.ones_like(flat))[:count])

    def rows(self, rows: slice) -> "RealTokens":
        """Return a slice of whole sequences."""
        return self._counted(self.sequence[rows], len(self.lengths))

    def with_further(self, tokens: int) -> "RealTokens":
        """Return those of whole sequences that have a token so many places further on: others read nothing there."""
        count = len(self.lengths)
        later_SB = torch.cat((self.sequence[tokens:], torch.full_like(self.sequence[:tokens], count)))
        return self._counted(self.sequence.masked_fill(later_SB != self.sequence, count), count)

    def on_context_rank(self, cp: Group) -> "RealTokens":
        """Return those of a rank that shares sequences with others."""
        return RealTokens(own_slice(self.sequence, cp.size, cp.index, 0), self.lengths)

    def on_tensor_rank(self, tp: Group) -> "RealTokens":
        """Return those of a rank of a group that divides the sequence further."""
        return RealTokens(self.sequence.chunk(tp.size)[tp.index], self.lengths)

    @property
    def numbers(self) -> Tensor:
        """Number of the sequence of each token of this rank, [N]."""
        return self.sequence.reshape(-1)

    @property
    def is_real(self) -> Tensor:
        """Whether each token of this rank is real, [N]."""
        return self.numbers < len(self.lengths)
