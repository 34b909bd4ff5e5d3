"""Linears whose weight is divided over the tensor-parallel group (Megatron-LM, arXiv 1909.08053 and 2205.05198).

ColumnParallelLinear divides the output features, RowParallelLinear the input features, so that a pair of them needs one
collective at each end: copy or sequence gather in, sum or sequence reduce-scatter out. Both are exact for a group of one.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.model.parameter import Initial, Place, constant, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Sharding

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]


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
        return F.linear(enter_tensor_parallel(x_SBH, self.tp, self.sequence_parallel), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """y = x W^T with the columns of W divided; the bias is handed back unadded, to be one step with dropout and residual."""

    def __init__(self, place: Place, inputs: int, outputs: int, *, bias: bool, initial: Initial) -> None:
        super().__init__()
        self.tp, self.sequence_parallel = place.tp, place.sequence_parallel
        self.weight = declare(place, (outputs, inputs), Sharding(dim=1), initial)
        replicated = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.bias = declare(place, (outputs,), replicated, constant(0.0)) if bias else None

    def forward(self, x_SBF: Tensor) -> tuple[Tensor, Tensor | None]:
        return leave_tensor_parallel(F.linear(x_SBF, self.weight), self.tp, self.sequence_parallel), self.bias


def enter_tensor_parallel(x_SBH: Tensor, tp: Group, sequence_parallel: bool) -> Tensor:
    """Make x whole on every rank; its gradient is summed over the ranks (and sliced along the sequence again)."""
    return collectives.gather_sequence(x_SBH, tp) if sequence_parallel else collectives.copy_to_group(x_SBH, tp)


def leave_tensor_parallel(x_SBH: Tensor, tp: Group, sequence_parallel: bool) -> Tensor:
    """Sum the ranks' parts of x (and keep a slice of the sequence)."""
    return collectives.reduce_scatter_sequence(x_SBH, tp) if sequence_parallel else collectives.sum_forward(x_SBH, tp)
