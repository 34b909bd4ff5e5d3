"""`Shape`: how long the sequences of a run are. No torch."""

import math
from dataclasses import dataclass

from primus.engine.config import ConfigContainer, SFTConfig

__all__ = ["Shape"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How long sequences are."""

    seq_length: int
    """At most so many tokens."""
    multiple: int
    """Sequences are filled up to a multiple."""
    segment_multiple: int
    """Packed samples too."""
    is_fixed: bool
    """Every sequence is filled up to `seq_length`."""
    end: int
    """The token that fills up."""

    @classmethod
    def of(cls, config: ConfigContainer, rows: SFTConfig, end: int) -> "Shape":
        """Return the run's: what divides sequences over ranks divides their lengths, and stages want one length."""
        parallel, packing = config.model.parallel, rows.packing
        context = 2 * parallel.context_parallel_size if parallel.context_parallel_size > 1 else 1
        sequence = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
        # Stages exchange messages of one length, and experts that gather all tokens want as many of each rank.
        experts = parallel.expert_model_parallel_size > 1 and config.model.moe.token_dispatcher == "allgather"
        return cls(
            seq_length=config.model.seq_length,
            multiple=math.lcm(rows.pad_multiple, context * sequence),
            segment_multiple=math.lcm(packing.pad_multiple if packing else 1, context),
            is_fixed=rows.pad_to_max_length or parallel.pipeline_model_parallel_size > 1 or experts,
            end=end,
        )

    def padded(self, length: int) -> int:
        """Return the length of a sequence with so many tokens."""
        return self.seq_length if self.is_fixed else min(self.seq_length, -(-length // self.multiple) * self.multiple)
