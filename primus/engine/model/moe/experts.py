"""The feed-forward parts of a rank's experts, their matrices stacked so that one grouped product does for all."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from primus.engine.kernels.expert_mlp import expert_mlp
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["Experts"]


class GroupedWeight(nn.Module):
    """The stack of one linear's matrices, [E, F, H]; a rank has those of its experts, and its part of each."""

    def __init__(self, place: Place, experts: int, outputs: int, inputs: int, sharding: Sharding, initial: Initial) -> None:
        super().__init__()
        self.weight = declare(place, (experts, outputs, inputs), sharding, initial)


class Experts(nn.Module):
    """linear_fc2(weight x activation(linear_fc1(x))) of each expert on its own rows."""

    def __init__(
        self,
        place: Place,
        *,
        experts: int,
        hidden: int,
        width: int,
        halves: int,
        activation: Callable[[Tensor], Tensor],
        initial: Initial,
        deep: Initial,
        grouped: bool,
    ) -> None:
        """`halves` is 2 for gated activations; `deep` fills what writes into the residual stream.

        With `grouped` all experts are multiplied at once, without it one after the other.
        """
        super().__init__()
        rows, columns = Sharding(dim=1, blocks=halves, is_expert=True), Sharding(dim=2, is_expert=True)
        self.linear_fc1 = GroupedWeight(place, experts, halves * width, hidden, rows, initial)
        self.linear_fc2 = GroupedWeight(place, experts, hidden, width, columns, deep)
        self.activation, self.grouped = activation, grouped

    def forward(self, x_MH: Tensor, weights_M: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the weighted outputs [M, H] of rows that are sorted by expert, `counts[e]` for each."""
        w1, w2 = self.linear_fc1.weight, self.linear_fc2.weight
        return expert_mlp(x_MH, weights_M, w1, w2, counts, self.activation, grouped=self.grouped)
