"""The feed-forward half of a layer: widen, bend, narrow."""

from collections.abc import Callable

from torch import Tensor, nn

from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.moe.real import RealTokens

__all__ = ["MLP"]


class MLP(nn.Module):
    """linear_fc2(activation(linear_fc1(x))) for all tokens alike; returns the output and its unadded bias."""

    def __init__(
        self, *, linear_fc1: ColumnParallelLinear, activation: Callable[[Tensor], Tensor], linear_fc2: RowParallelLinear
    ) -> None:
        super().__init__()
        self.linear_fc1, self.activation, self.linear_fc2 = linear_fc1, activation, linear_fc2

    def forward(self, x_SBH: Tensor, real: RealTokens | None = None) -> tuple[Tensor, Tensor | None]:
        output: tuple[Tensor, Tensor | None] = self.linear_fc2(self.activation(self.linear_fc1(x_SBH)))
        return output
