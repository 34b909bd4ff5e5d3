"""The expert that all tokens pass, with a gate of its own."""

from collections.abc import Callable

import torch
from torch import Tensor

from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mlp import MLP
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["GatedSharedExpert"]


class GatedSharedExpert(MLP):
    """sigmoid(gate_weight . x) mlp(x), one number a token (Qwen2-MoE)."""

    def __init__(
        self,
        place: Place,
        hidden: int,
        *,
        linear_fc1: ColumnParallelLinear,
        activation: Callable[[Tensor], Tensor],
        linear_fc2: RowParallelLinear,
        initial: Initial,
    ) -> None:
        super().__init__(linear_fc1=linear_fc1, activation=activation, linear_fc2=linear_fc2)
        sharding = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.gate_weight = declare(place, (1, hidden), sharding, initial)

    def forward(self, x_SBH: Tensor, real: RealTokens | None = None) -> tuple[Tensor, Tensor | None]:
        y_SBH, bias = super().forward(x_SBH, real)
        return y_SBH * torch.sigmoid(x_SBH @ self.gate_weight.t()), bias
