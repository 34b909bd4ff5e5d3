"""A layer of a state-space model: norm, mixer, add."""

from torch import Tensor, nn

from primus.engine.kernels.segments import Mask
from primus.engine.model.dropout import BiasDropoutAdd
from primus.engine.model.layer import Residual
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice

__all__ = ["MixerLayer"]


class MixerLayer(nn.Module):
    """Takes what a transformer layer takes; a mixer needs no tables, and of the mask the packed samples."""

    def __init__(self, *, norm: nn.Module, mixer: nn.Module, add: BiasDropoutAdd, residual: Residual) -> None:
        super().__init__()
        self.norm, self.mixer, self.add, self.residual = norm, mixer, add, residual

    def forward(
        self,
        x_SBH: Tensor,
        tables: RotaryTables | None,
        mask: Mask,
        part: SequenceSlice | None = None,
        real: RealTokens | None = None,
    ) -> Tensor:
        normed = self.norm(x_SBH)
        y, bias = self.mixer(normed, mask)
        added: Tensor = self.add(y, bias, self.residual(x_SBH, normed))
        return added
