"""Linears whose weight is divided over the tensor-parallel group (Megatron-LM, arXiv 1909.08053 and 2205.05198).

ColumnParallelLinear divides the output features, RowParallelLinear the input features, so that a pair of them needs one
collective at each end: copy or sequence gather in, sum or sequence reduce-scatter out. Both are exact for a group of one.
How the collectives of sequence parallelism and the products run beside one another is the linear's form (`overlap.py`). The
input is kept for the gradient of the weight, so not where that is frozen.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from primus.engine.config.tp_overlap import ColumnOverlap, RowOverlap
from primus.engine.kernels.linear import linear, weight_gradient
from primus.engine.model.overlap import ColumnForm, RowForm, column_form, row_form
from primus.engine.model.parameter import Initial, Place, constant, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Sharding
from primus.engine.parallel.slot import slot_of

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "enter_tensor_parallel"]

_COLUMN, _ROW = ColumnOverlap(), RowOverlap()


class ColumnParallelLinear(nn.Module):
    """y = x W^T + b with the rows of W divided; y keeps this rank's features of the whole sequence."""

    def __init__(
        self,
        place: Place,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        initial: Initial,
        blocks: int | tuple[int, ...] = 1,
        overlap: ColumnOverlap = _COLUMN,
    ) -> None:
        """Divide each of `blocks` equal groups of rows over the ranks (gate and linear half of a gated MLP are two).

        `blocks` may also be the sizes of unequal groups. `overlap` says what runs beside collectives of sequence parallelism.
        """
        super().__init__()
        sharding = Sharding(dim=0, blocks=blocks)
        self.weight = declare(place, (outputs, inputs), sharding, initial)
        self.bias = declare(place, (outputs,), sharding, constant(0.0)) if bias else None
        self.product = _column_product(place, overlap)
        """From x, weight and bias to y."""

    def forward(self, x_SBH: Tensor) -> Tensor:
        return self.product(x_SBH, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T with the columns of W divided; the bias is handed back unadded, to be one step with dropout and residual."""

    def __init__(
        self, place: Place, inputs: int, outputs: int, *, bias: bool, initial: Initial, overlap: RowOverlap = _ROW
    ) -> None:
        """`overlap` says what runs beside the collectives of sequence parallelism."""
        super().__init__()
        self.weight = declare(place, (outputs, inputs), Sharding(dim=1), initial)
        replicated = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.bias = declare(place, (outputs,), replicated, constant(0.0)) if bias else None
        self.product = _row_product(place, overlap)
        """From x and weight to y without bias."""

    def forward(self, x_SBF: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.product(x_SBF, self.weight), self.bias


def enter_tensor_parallel(x_SBH: Tensor, tp: Group, sequence_parallel: bool) -> Tensor:
    """Make x whole on every rank; its gradient is summed over the ranks (and sliced along the sequence again)."""
    return collectives.gather_sequence(x_SBH, tp) if sequence_parallel else collectives.copy_to_group(x_SBH, tp)


def _column_product(place: Place, overlap: ColumnOverlap) -> Callable[[Tensor, nn.Parameter, nn.Parameter | None], Tensor]:
    if place.tp.size == 1:
        return linear
    if place.sequence_parallel:
        return partial(_apply, _GatheredColumn, place.tp, column_form(overlap))
    return partial(_apply, _CopiedColumn, place.tp)


def _row_product(place: Place, overlap: RowOverlap) -> Callable[[Tensor, nn.Parameter], Tensor]:
    if place.sequence_parallel:
        return partial(_apply, _ScatteredRow, place.tp, row_form(overlap))
    return lambda x, weight: collectives.sum_forward(linear(x, weight), place.tp)


def _apply(function: type[Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)
    return result


class _CopiedColumn(Function):
    """Every rank has all of x; its gradient is summed over the ranks beside the second product of the backward.

    all-reduce dx ......
    dx = dy W            | dW = dy^T x
    """

    @staticmethod
    def forward(ctx: Any, tp: Group, x_SBH: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_SBH if ctx.needs_input_grad[2] else None, weight)
        ctx.slot, ctx.tp = slot_of(weight), tp
        return F.linear(x_SBH, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SBF: Tensor) -> tuple[Tensor | None, ...]:
        x_SBH, weight = ctx.saved_tensors
        _, _, needs_weight, needs_bias = ctx.needs_input_grad
        dy_TF = dy_SBF.flatten(0, -2)
        dx_SBH = (dy_TF @ weight).view(*dy_SBF.shape[:-1], -1)
        reduction = collectives.start_all_reduce_(dx_SBH, ctx.tp)
        d_weight = weight_gradient(dy_TF, x_SBH.flatten(0, -2), ctx.slot) if needs_weight else None
        d_bias = dy_TF.sum(0) if needs_bias else None
        collectives.wait(reduction)
        return None, dx_SBH, d_weight, d_bias


class _GatheredColumn(Function):
    """Every rank has a slice of the sequence of x, and keeps no more, which is why the backward gathers it again.

    gather x ......      | reduce-scatter dx ......
    dx = dy W            | dW = dy^T x
    """

    @staticmethod
    def forward(ctx: Any, tp: Group, form: ColumnForm, x_SBH: Tensor, weight: nn.Parameter, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_SBH if ctx.needs_input_grad[3] else None, weight)
        ctx.slot, ctx.tp, ctx.form = slot_of(weight), tp, form
        return form.fprop(x_SBH, weight.t(), bias, tp)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SBF: Tensor) -> tuple[Tensor | None, ...]:
        x_SBH, weight = ctx.saved_tensors
        _, _, _, needs_weight, needs_bias = ctx.needs_input_grad
        x_SBH, gathering = ctx.form.gather(x_SBH, ctx.tp) if needs_weight else (x_SBH, [])
        dx_SBH, scattering = ctx.form.dgrad(dy_SBF, weight, ctx.tp)
        collectives.wait(gathering)
        dy_TF = dy_SBF.flatten(0, -2)
        d_weight = weight_gradient(dy_TF, x_SBH.flatten(0, -2), ctx.slot) if needs_weight else None
        d_bias = dy_TF.sum(0) if needs_bias else None
        collectives.wait(scattering)
        return None, None, dx_SBH, d_weight, d_bias


class _ScatteredRow(Function):
    """Every rank gets a slice of the sequence of y, and gathers its gradient."""

    @staticmethod
    def forward(ctx: Any, tp: Group, form: RowForm, x_SBF: Tensor, weight: nn.Parameter) -> Tensor:
        ctx.save_for_backward(x_SBF if ctx.needs_input_grad[3] else None, weight)
        ctx.slot, ctx.tp, ctx.form = slot_of(weight), tp, form
        return form.fprop(x_SBF, weight.t(), tp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_SBH: Tensor) -> tuple[Tensor | None, ...]:
        x_SBF, weight = ctx.saved_tensors
        dy_SBH, dx_SBF = ctx.form.dgrad(dy_SBH, weight, None, ctx.tp)
        needs_weight = ctx.needs_input_grad[3]
        d_weight = weight_gradient(dy_SBH.flatten(0, -2), x_SBF.flatten(0, -2), ctx.slot) if needs_weight else None
        return None, None, dx_SBF, d_weight
