"""`Profiling` opens and closes the profiler's window around iterations."""

from primus.engine.observe.profiler import Profiler
from primus.engine.train.loop import Callback, Loop

__all__ = ["Profiling"]


class Profiling(Callback):
    """Drives one rank's profiler."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    def before_step(self, loop: Loop) -> None:
        self._profiler.before_iteration(loop.state.iteration + 1)

    def can_wait(self, loop: Loop) -> bool:
        return True

    def close(self, *, failed: bool) -> None:
        self._profiler.finish()
