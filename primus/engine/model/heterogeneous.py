"""`SquareLinear`: one matrix in place of a half of a layer (`replace_with_linear` of pruned models)."""

from typing import Any

from torch import Tensor, nn

from primus.engine.kernels.linear import linear
from primus.engine.model.linears import enter_tensor_parallel
from primus.engine.model.parameter import Initial, Place, constant, declare
from primus.engine.parallel import collectives
from primus.engine.parallel.sharding import Sharding

__all__ = ["SquareLinear"]


class SquareLinear(nn.Module):
    """y = x W^T + b with the rows of W divided and y gathered again; mixes no tokens, whatever else attention is given."""

    def __init__(self, place: Place, hidden: int, *, bias: bool, initial: Initial) -> None:
        super().__init__()
        sharding = Sharding(dim=0)
        self.weight = declare(place, (hidden, hidden), sharding, initial)
        self.bias = declare(place, (hidden,), sharding, constant(0.0)) if bias else None
        self._tp, self._sequence_parallel = place.tp, place.sequence_parallel

    def forward(self, x_SBH: Tensor, *_of_attention: Any) -> tuple[Tensor, Tensor | None]:
        y = linear(enter_tensor_parallel(x_SBH, self._tp, self._sequence_parallel), self.weight, self.bias)
        if self._sequence_parallel:
            return collectives.scatter_sequence_gather_heads(y, self._tp), None
        return collectives.gather_last_dim(y, self._tp), None
