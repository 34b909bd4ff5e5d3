"""`MemoryProfile` logs each rank's memory after every iteration, and records the allocations of one (`profile_memory_iter`)."""

import logging
from pathlib import Path

from primus.engine.observe.allocations import AllocationRecord
from primus.engine.observe.memory import memory_bytes
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["MemoryProfile"]

log = logging.getLogger(__name__)


class MemoryProfile(Callback):
    """One file a rank: `mem-profile-rank<rank>` in the run folder, also of an iteration that fails."""

    def __init__(self, iteration: int, folder: Path, mesh: Mesh) -> None:
        """`iteration` counts from 1; 0 records none."""
        self._iteration, self._mesh = iteration, mesh
        self._stem = folder / f"mem-profile-rank{mesh.rank}"
        self._record: AllocationRecord | None = None
        self._is_due = iteration > 0

    def before_step(self, loop: Loop) -> None:
        if loop.state.iteration + 1 == self._iteration:
            self._record, self._is_due = AllocationRecord(self._mesh.device), False

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        figures = ", ".join(f"{tag} {size:,d}" for tag, size in memory_bytes(self._mesh.device).items())
        log.info("iteration %d on rank %d: %s", loop.state.iteration, self._mesh.rank, figures)
        self._write()

    def close(self, *, failed: bool) -> None:
        self._write()
        if self._is_due and not failed:
            log.warning("no allocations were recorded: iteration %d (profile_memory_iter) was not run", self._iteration)

    def _write(self) -> None:
        if self._record is not None:
            record, self._record = self._record, None
            log.info("allocations of iteration %d written to %s", self._iteration, record.write(self._stem))
