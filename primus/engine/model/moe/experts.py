"""The feed-forward parts of a rank's experts, their matrices stacked so that one grouped product does for all."""

from collections.abc import Sequence

from torch import Tensor, nn

from primus.engine.kernels.expert_mlp import ExpertForms, expert_mlp
from primus.engine.model.parameter import Initial, Place, constant, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["Experts", "GroupedWeight"]


class GroupedWeight(nn.Module):
    """The stack of one linear's matrices, [E, F, H]; a rank has those of its experts, and its part of each."""

    def __init__(
        self, place: Place, shape: tuple[int, int, int], sharding: Sharding, initial: Initial, *, bias: Sharding | None
    ) -> None:
        """`bias` is the sharding of one vector [F] an expert, if there is any."""
        super().__init__()
        self.weight = declare(place, shape, sharding, initial)
        self.bias = None if bias is None else declare(place, shape[:2], bias, constant(0.0))


class Experts(nn.Module):
    """linear_fc2(weight x activation(linear_fc1(x))) of each expert on its own rows; weights also multiply the last bias."""

    def __init__(
        self,
        place: Place,
        *,
        experts: int,
        hidden: int,
        width: int,
        halves: int,
        forms: ExpertForms,
        initial: Initial,
        deep: Initial,
        bias: bool,
    ) -> None:
        """`halves` is 2 for gated activations; `deep` fills what writes into the residual stream.

        With `bias` no ranks may share an expert: each would add the last one.
        """
        super().__init__()
        rows, columns = Sharding(dim=1, blocks=halves, is_expert=True), Sharding(dim=2, is_expert=True)
        assert not bias or place.etp.size == 1, "ranks that share an expert would each add its last bias"
        first, last = (rows, Sharding(dim=None, is_expert=True)) if bias else (None, None)
        self.linear_fc1 = GroupedWeight(place, (experts, halves * width, hidden), rows, initial, bias=first)
        self.linear_fc2 = GroupedWeight(place, (experts, hidden, width), columns, deep, bias=last)
        self.forms = forms

    def forward(self, x_MH: Tensor, weights_M: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the weighted outputs [M, H] of rows that are sorted by expert, `counts[e]` for each."""
        w1, w2, b1, b2 = self.linear_fc1.weight, self.linear_fc2.weight, self.linear_fc1.bias, self.linear_fc2.bias
        biases = None if b1 is None or b2 is None else (b1, b2)
        return expert_mlp(x_MH, weights_M, w1, w2, counts, self.forms, biases=biases)
