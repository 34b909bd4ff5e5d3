"""The norms as parts. Weights are whole on every rank; under sequence parallelism each rank has a part of their gradient."""

from torch import Tensor, nn

from primus.engine.config.model import FusionConfig
from primus.engine.kernels.norm import l2_norm, layer_norm, rms_norm_form
from primus.engine.kernels.pick import pick
from primus.engine.model.parameter import Place, constant, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["L2Norm", "LayerNorm", "RMSNorm"]


class RMSNorm(nn.Module):
    """RMSNorm with a gain; `one_plus` stores the gain minus one."""

    def __init__(
        self, place: Place, width: int, *, eps: float, one_plus: bool, partial_grad: bool, fusion: FusionConfig
    ) -> None:
        """`partial_grad`: the ranks of the tensor-parallel group see other tokens or other heads, so gradients add up.

        `fusion` says whether a kernel is asked for.
        """
        super().__init__()
        self.function = rms_norm_form(pick("rms_norm", fusion, device_type=place.device.type, dtype=place.dtype))
        self.eps, self.offset = eps, float(one_plus)
        sharding = Sharding(dim=None, sequence_parallel_grad=partial_grad)
        self.weight = declare(place, (width,), sharding, constant(1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight, self.eps, self.offset)


class LayerNorm(nn.Module):
    """LayerNorm with gain and bias; `one_plus` stores the gain minus one."""

    def __init__(self, place: Place, width: int, *, eps: float, one_plus: bool, partial_grad: bool) -> None:
        """`partial_grad`: the ranks of the tensor-parallel group see other tokens or other heads, so gradients add up."""
        super().__init__()
        self.eps, self.offset = eps, float(one_plus)
        sharding = Sharding(dim=None, sequence_parallel_grad=partial_grad)
        self.weight = declare(place, (width,), sharding, constant(1.0 - self.offset))
        self.bias = declare(place, (width,), sharding, constant(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps, self.offset)


class L2Norm(nn.Module):
    """The norm without parameters."""

    def __init__(self, *, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return l2_norm(x, self.eps)
