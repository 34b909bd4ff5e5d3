"""`Validation`: steps end on each stage without waiting for the others (post-validation, arXiv 2401.10241, section 4).

The norm of the gradients over all stages, and the loss, are on their way while the next step begins; `EarlyUpdate` keeps the
weights to what that norm asks for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.optim.early import EarlyUpdate
from primus.engine.optim.optimizer import Optimizer, Update
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.relay import Relay
from primus.engine.train.sums import BatchSums

__all__ = ["Settled", "Validation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """A step whose end all stages know."""

    update: Update
    sums: BatchSums
    stands: bool
    """All stages went ahead with the update that it was."""


class Validation:
    """One step at a time: `begin` at its end, `settle` once the next one is under way."""

    def __init__(self, optimizer: Optimizer, mesh: Mesh, *, exact: bool) -> None:
        """`exact`: as `EarlyUpdate` says."""
        self._optimizer, self._mesh = optimizer, mesh
        self._early, self._relay = EarlyUpdate(optimizer, exact=exact), Relay(mesh)

    @property
    def is_armed(self) -> bool:
        """Whether the coming step ends without waiting; the same on all ranks."""
        return self._early.is_armed

    def note(self, update: Update) -> None:
        """Learn from a step that waited."""
        self._early.note(update)

    def begin(self, table: Tensor) -> None:
        """End a step on this stage; `table` is what its microbatches add to the sums, a row each, zeros without any."""
        sums = all_reduce_(table.sum(dim=0), self._mesh.dp_cp)
        known = self._relay.add(torch.cat((self._optimizer.squares().view(1), sums)))
        # Waits for this stage and those before it.
        self._early.begin(known[0].item())

    def settle(self, origin: Callable[[], str]) -> Settled:
        """End the step on all stages; RunError as `Optimizer.step` raises it."""
        squares, *sums = self._relay.whole().tolist()
        update, stands = self._early.settle(squares, origin)
        return Settled(update=update, sums=BatchSums(*sums), stands=stands)
