"""A layer of a state-space model: norm, mixer, add."""

from torch import Tensor, nn

from primus.engine.kernels.segments import Mask, Segments
from primus.engine.model.dropout import BiasDropoutAdd
from primus.engine.model.layer import Residual
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice

__all__ = ["MixerLayer"]


class MixerLayer(nn.Module):
    """Takes what a transformer layer takes; a mixer needs no tables and no mask, and runs on past the end of a sample."""

    def __init__(self, *, norm: nn.Module, mixer: nn.Module, add: BiasDropoutAdd, residual: Residual) -> None:
        super().__init__()
        self.norm, self.mixer, self.add, self.residual = norm, mixer, add, residual

    def forward(self, x_SBH: Tensor, tables: RotaryTables | None, mask: Mask, part: SequenceSlice | None = None) -> Tensor:
        assert not isinstance(mask, Segments), "packed samples would not stay apart"
        normed = self.norm(x_SBH)
        y, bias = self.mixer(normed)
        added: Tensor = self.add(y, bias, self.residual(x_SBH, normed))
        return added
