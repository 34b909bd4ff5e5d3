"""The norms as parts. Weights are whole on every rank, but for those of all heads together; under sequence parallelism each
rank has a part of their gradient.
"""

import torch
from torch import Tensor, nn

from primus.engine.config.model import FusionConfig
from primus.engine.kernels.norm import l2_norm, layer_norm, rms_norm_form
from primus.engine.kernels.pick import pick
from primus.engine.model.parameter import Place, constant, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.sharding import Sharding

__all__ = ["L2Norm", "LayerNorm", "RMSNorm", "WholeHeadsNorm"]


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


class WholeHeadsNorm(nn.Module):
    """RMSNorm over all heads together, of which a tensor-parallel rank has its own; `one_plus` stores the gain minus one."""

    def __init__(self, place: Place, heads: int, channels: int, *, eps: float, one_plus: bool) -> None:
        super().__init__()
        self.tp, self.width, self.eps, self.offset = place.tp, heads * channels, eps, float(one_plus)
        self.weight = declare(place, (self.width,), Sharding(dim=0), constant(1.0 - self.offset))

    def forward(self, heads: Tensor) -> Tensor:
        """Return the norm of heads [S, B, ..., D]; the mean square is taken in at least fp32."""
        x = heads.flatten(2).to(torch.promote_types(heads.dtype, torch.float32))
        squares = collectives.sum_forward(x.square().sum(-1, keepdim=True), self.tp)
        # The ranks' heads all depend on this sum, so that its gradient is a sum over ranks, too.
        mean = collectives.copy_to_group(squares, self.tp) / self.width
        y = x * torch.rsqrt(mean + self.eps) * (self.weight + self.offset)
        return y.to(self.weight.dtype).view(heads.shape)


class L2Norm(nn.Module):
    """The norm without parameters."""

    def __init__(self, *, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return l2_norm(x, self.eps)
