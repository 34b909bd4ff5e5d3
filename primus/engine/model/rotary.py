"""Rotary positions as a part: the tables of a run, and the rotation of query and key heads."""

import torch
from torch import Tensor, nn

from primus.engine.config.position import PositionConfig
from primus.engine.kernels.rope import (
    apply_rotary,
    llama3_frequencies,
    rotary_frequencies,
    rotary_tables,
    yarn_concentration,
    yarn_correction_range,
    yarn_frequencies,
)
from primus.engine.kernels.segments import Segments
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Group

__all__ = ["RotaryEmbedding", "RotaryTables", "frequencies_of", "rotate"]

RotaryTables = tuple[Tensor, Tensor]
"""cos and sin, [S, rotated channels / 2]."""


class RotaryEmbedding(nn.Module):
    """Tables for positions 0 to length-1, of which a context-parallel rank takes its own.

    A row's position is its index, also where documents restart their position ids; packed samples start at 0 each.
    """

    def __init__(
        self, position: PositionConfig, channels: int, *, length: int, cp: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.cp = cp
        self.frequencies, self.multiplier = frequencies_of(position, channels)
        self.spacing = 1.0 / (position.interpolation_factor or 1.0)
        self.dtype, self.device = dtype, device
        self.tables = self._build(length)

    def forward(self, length: int, first: int = 0, packed: Segments | None = None) -> RotaryTables:
        """Return the tables of this rank's `length` positions of those that start at `first`."""
        stop = first + length * self.cp.size
        if stop > len(self.tables[0]):
            self.tables = self._build(stop)
        rows = slice(first, stop) if packed is None else packed.position[first:stop]
        cos, sin = (own_slice(table[rows], self.cp.size, self.cp.index, 0) for table in self.tables)
        return cos, sin

    def _build(self, length: int) -> RotaryTables:
        positions = torch.arange(length, dtype=torch.float32, device=self.device) * self.spacing
        return rotary_tables(self.frequencies, positions, multiplier=self.multiplier, dtype=self.dtype)


def frequencies_of(position: PositionConfig, channels: int) -> tuple[Tensor, float]:
    """Return the frequencies of a head of `channels` channels, and the factor of cos and sin."""
    rotated = channels if position.rotary_percent >= 1.0 else int(channels * position.rotary_percent)
    plain = rotary_frequencies(rotated, position.rotary_base)
    if position.type == "yarn":
        low, high = yarn_correction_range(
            rotated,
            position.rotary_base,
            position.yarn_original_max_position_embeddings,
            position.yarn_beta_fast,
            position.yarn_beta_slow,
            round_to_int=position.yarn_correction_range_round_to_int,
        )
        multiplier = yarn_concentration(position.yarn_scaling_factor, position.yarn_mscale, position.yarn_mscale_all_dim)
        return yarn_frequencies(plain, position.yarn_scaling_factor, low, high), multiplier
    if not position.use_rope_scaling:
        return plain, 1.0
    return llama3_frequencies(plain, position.rope_scaling_factor, context=position.rope_scaling_context), 1.0


def rotate(x: Tensor, tables: RotaryTables | None, *, interleaved: bool) -> Tensor:
    """Rotate heads [S, B, ..., D]; without tables positions are nobody's business here."""
    return x if tables is None else apply_rotary(x, *tables, interleaved=interleaved)
