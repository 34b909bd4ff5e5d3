"""`DataParallel`: what a step, the optimizer and checkpoints ask of those who keep a rank's weights and gradients.

`GradientBuffers` (data.py) keeps them in flat memory of its own, `FullyShardedDataParallel` (fsdp2.py) has torch's
`fully_shard` keep them. Who computes and who updates does not see the difference.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Protocol

from primus.engine.parallel.buckets import OwnedRange
from primus.engine.parallel.gradients import Watcher
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Shards

__all__ = ["DataParallel"]


class DataParallel(Protocol):
    """Keeps weights and gradients of a rank's model chunks, and exchanges them with the data-parallel ranks."""

    shard_group: Group
    """Ranks that divide the optimizer state of dense parameters; a group of one if nobody does."""
    expert_shard_group: Group
    """Ranks that divide that of experts."""

    def ranges(self) -> list[OwnedRange]:
        """Return what this rank updates."""

    def weight_shards(self) -> dict[str, Shards]:
        """Return the rectangles of every parameter that this rank holds for good, under global names."""

    def watch(self, watcher: Watcher) -> None:
        """Show this rank's own gradients to `watcher` right before they are reduced."""

    def zero_grad(self) -> None:
        """Start a step: forget all gradients."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backwards within are not the last of a step."""

    def deferring(self, key: Any) -> AbstractContextManager[None]:
        """Backwards within may set weight gradients aside under `key`."""

    def compute_deferred(self, key: Any) -> None:
        """Add what was set aside under `key`."""

    def compute_postponed(self) -> None:
        """Add what waits for the end of the backwards."""

    def release(self, chunk: int) -> None:
        """Other stages reduce the gradients of this chunk now."""

    def finish_grad_sync(self) -> None:
        """Complete the step's gradients of all `ranges`."""

    def gather_params(self, chunks: Collection[int] | None = None) -> None:
        """The weights of some chunks (None: all) were updated."""

    def gather_ahead(self, chunk: int) -> None:
        """Other stages gather the weights of this chunk now."""

    def finish_param_gather(self) -> None:
        """Wait until weights that are held whole are whole; anyone who reads them outside a forward calls this first."""
