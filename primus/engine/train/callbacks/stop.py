"""`Stopping` ends a run early: on a signal, after a time, or at an iteration, on all ranks at the same one.

Ctrl-C counts as a signal like the scheduler's; pressed again, it ends the process at once.
"""

import logging
import signal
import time
from types import FrameType

import torch

from primus.engine.config import TrainConfig
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["Stopping"]

log = logging.getLogger(__name__)


class Stopping(Callback):
    """Reads the three exit keys; the save that follows is the saving callback's."""

    def __init__(self, config: TrainConfig, mesh: Mesh, *, process_start: float) -> None:
        self._config, self._mesh, self._process_start = config, mesh, process_start
        self._agrees = config.exit_signal_handler or config.exit_duration_in_mins is not None
        self._signal = 0
        if config.exit_signal_handler:
            signal.signal(signal.SIGTERM, self._on_signal)
            signal.signal(signal.SIGINT, self._on_signal)

    def can_wait(self, loop: Loop) -> bool:
        """Never where ranks agree after each iteration."""
        interval = self._config.exit_interval
        return not (self._agrees or (interval and loop.state.iteration % interval == 0))

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        minutes = (time.time() - self._process_start) / 60
        limit = self._config.exit_duration_in_mins
        signalled, overdue = self._agree(self._signal, int(limit is not None and minutes > limit))
        interval = self._config.exit_interval
        if signalled:
            loop.stop(f"exiting program after receiving {signal.Signals(signalled).name}.")
        elif overdue:
            loop.stop(f"exiting program after {minutes:.1f} minutes")
        elif interval and loop.state.iteration % interval == 0:
            loop.stop(f"exiting program at iteration {loop.state.iteration}")
        if loop.stop_reason is not None:
            log.info("%s", loop.stop_reason)

    def _agree(self, *votes: int) -> tuple[int, ...]:
        """The highest vote of any rank counts for all; silent when neither key is in use."""
        if not self._agrees:
            return votes
        highest = torch.tensor(votes, dtype=torch.float32, device=self._mesh.device)
        all_reduce_(highest, self._mesh.world, "max")
        return tuple(int(vote) for vote in highest.tolist())

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
