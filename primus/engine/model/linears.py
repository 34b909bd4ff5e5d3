"""Linears whose weight is divided over the tensor-parallel group (Megatron-LM, arXiv 1909.08053 and 2205.05198).

ColumnParallelLinear divides the output features, RowParallelLinear the input features, so that a pair of them needs one
collective at each end: copy or sequence gather in, sum or sequence reduce-scatter out. Both are exact for a group of one.
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.kernels.linear import linear, weight_gradient
from primus.engine.model.parameter import Initial, Place, constant, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Sharding
from primus.engine.parallel.slot import slot_of

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "enter_tensor_parallel"]


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b with the rows of W divided; y keeps this rank's features of the whole sequence."""

    def __init__(self, place: Place, inputs: int, outputs: int, *, bias: bool, initial: Initial, blocks: int = 1) -> None:
        """Divide each of `blocks` equal groups of rows over the ranks (gate and linear half of a gated MLP are two)."""
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        sharding = Sharding(dim=0, blocks=blocks)
        self.weight = declare(place, (outputs, inputs), sharding, initial)
        self.bias = declare(place, (outputs,), sharding, constant(0.0)) if bias else None

    def forward(self, x_SBH: Tensor) -> Tensor:
        if self.tp.size == 1:
            return linear(x_SBH, self.weight, self.bias)
        y_SBF: Tensor = _ColumnParallel.apply(x_SBH, self.weight, self.bias, self.tp, self.sequence_parallel)
        return y_SBF


class RowParallelLinear(nn.Module):
    """y = x W^T with the columns of W divided; the bias is handed back unadded, to be one step with dropout and residual."""

    def __init__(self, place: Place, inputs: int, outputs: int, *, bias: bool, initial: Initial) -> None:
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        self.weight = declare(place, (outputs, inputs), Sharding(dim=1), initial)
        replicated = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.bias = declare(place, (outputs,), replicated, constant(0.0)) if bias else None

    def forward(self, x_SBF: Tensor) -> tuple[Tensor, Tensor | None]:
        return leave_tensor_parallel(linear(x_SBF, self.weight), self.tp, self.sequence_parallel), self.bias


def enter_tensor_parallel(x_SBH: Tensor, tp: Group, sequence_parallel: bool) -> Tensor:
    """Make x whole on every rank; its gradient is summed over the ranks (and sliced along the sequence again)."""
    return collectives.gather_sequence(x_SBH, tp) if sequence_parallel else collectives.copy_to_group(x_SBH, tp)


def leave_tensor_parallel(x_SBH: Tensor, tp: Group, sequence_parallel: bool) -> Tensor:
    """Sum the ranks' parts of x (and keep a slice of the sequence)."""
    return collectives.reduce_scatter_sequence(x_SBH, tp) if sequence_parallel else collectives.sum_forward(x_SBH, tp)


class _ColumnParallel(Function):
    """Entering the tensor-parallel region and the product as one, so that the backward's collectives run beside its products.

    sequence parallel   gather x ......      | reduce-scatter dx ......
                        dx = dy W            | dW = dy^T x
    otherwise                                | all-reduce dx ......
                        dx = dy W            | dW = dy^T x

    Under sequence parallelism only this rank's slice of x is kept, which is why the backward gathers it again.
    """

    @staticmethod
    def forward(
        ctx: Any, x_SBH: Tensor, weight: nn.Parameter, bias: Tensor | None, tp: Group, sequence_parallel: bool
    ) -> Tensor:
        ctx.save_for_backward(x_SBH, weight)
        ctx.slot, ctx.tp, ctx.sequence_parallel = slot_of(weight), tp, sequence_parallel
        return F.linear(collectives.gather_sequence(x_SBH, tp) if sequence_parallel else x_SBH, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SBF: Tensor) -> tuple[Tensor | None, ...]:
        x_SBH, weight = ctx.saved_tensors
        _, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        dy_TF = dy_SBF.flatten(0, -2)
        gather: collectives.Works = []
        if ctx.sequence_parallel and needs_weight:
            own, x_SBH = x_SBH, x_SBH.new_empty(dy_SBF.shape[0], *x_SBH.shape[1:])
            collectives.own_part(x_SBH, ctx.tp).copy_(own)
            gather = collectives.start_all_gather_(x_SBH, ctx.tp)
        dx_SBH = (dy_TF @ weight).view(*dy_SBF.shape[:-1], -1)
        collectives.wait(gather)
        start = collectives.start_reduce_scatter_ if ctx.sequence_parallel else collectives.start_all_reduce_
        reduction = start(dx_SBH, ctx.tp)
        d_weight = weight_gradient(dy_TF, x_SBH.flatten(0, -2), ctx.slot) if needs_weight else None
        d_bias = dy_TF.sum(0) if needs_bias else None
        collectives.wait(reduction)
        dx_SBH = collectives.own_part(dx_SBH, ctx.tp) if ctx.sequence_parallel else dx_SBH
        return dx_SBH, d_weight, d_bias, None, None
