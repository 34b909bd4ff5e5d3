"""The short convolution of LFM2, which takes the place of attention: two gates around a depthwise convolution of a few taps.

[b | c | x] = u W_in,  out = (c convolution(b x)) W_out

Tensor-parallel ranks divide channels, so the convolution needs no communication.
"""

from torch import Tensor, nn

from primus.engine.kernels.segments import Mask
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice
from primus.engine.model.ssm.conv import CausalConvolution

__all__ = ["ShortConvolution"]


class ShortConvolution(nn.Module):
    """Takes and returns [S, B, H]; of what attention is given it needs the packed samples besides."""

    def __init__(self, *, in_proj: ColumnParallelLinear, conv1d: CausalConvolution, out_proj: RowParallelLinear) -> None:
        super().__init__()
        self.in_proj, self.conv1d, self.out_proj = in_proj, conv1d, out_proj

    def forward(
        self, u_SBH: Tensor, tables: RotaryTables | None = None, mask: Mask = None, part: SequenceSlice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        b, c, x = self.in_proj(u_SBH).chunk(3, dim=-1)
        out: tuple[Tensor, Tensor | None] = self.out_proj(c * self.conv1d(b * x, mask))
        return out
