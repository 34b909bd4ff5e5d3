"""`GarbageCollection` keeps Python's collector from pausing ranks at different moments (`manual_gc`)."""

import gc

from primus.engine.config import TrainConfig
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["GarbageCollection"]


class GarbageCollection(Callback):
    """Collects on schedule, on every rank after the same iteration."""

    def __init__(self, config: TrainConfig) -> None:
        self._interval = config.manual_gc_interval

    def on_start(self, loop: Loop) -> None:
        gc.disable()
        gc.collect()

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        if self._interval and loop.state.iteration % self._interval == 0:
            gc.collect()

    def can_wait(self, loop: Loop) -> bool:
        return True

    def close(self, *, failed: bool) -> None:
        gc.enable()
