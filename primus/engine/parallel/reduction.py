"""Over whom gradients are reduced, and how: dense parameters and experts have other ranks that hold the same."""

from dataclasses import dataclass
from typing import NamedTuple

from primus.engine.parallel.mesh import Group

__all__ = ["Reduction", "Reductions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """How one kind of gradients is reduced."""

    group: Group
    """Ranks that have gradients of the same parameters, from other tokens."""
    shard_group: Group
    """Those of them that divide the result; a group of one if nobody does."""
    inter_group: Group
    """Ranks that hold the same shard."""
    divisor: int
    """A mean is over this many ranks, 1: the sum. It is the number of ranks with other tokens of a batch, for experts as well:
    those that lie on other ranks have sent their tokens."""
    divides_after: bool
    """The mean is taken after the sum instead of before it."""
    overlaps: bool
    """Reductions run beside the backward."""

    @property
    def is_divided(self) -> bool:
        """Whether each rank gets a part of the result."""
        return self.shard_group.size > 1

    @property
    def factor_before(self) -> float:
        """What a rank's own gradients are multiplied by; gloo cannot average, so the division is ours on every backend."""
        return 1.0 if self.divides_after else 1.0 / self.divisor

    @property
    def factor_after(self) -> float:
        """What the sum is multiplied by."""
        return 1.0 / self.divisor if self.divides_after else 1.0


class Reductions(NamedTuple):
    """The two kinds."""

    dense: Reduction
    expert: Reduction

    def of(self, *, is_expert: bool) -> Reduction:
        """Return that of a parameter."""
        return self.expert if is_expert else self.dense

    @property
    def are_divided(self) -> bool:
        """Whether results of any kind are divided."""
        return self.dense.is_divided or self.expert.is_divided
