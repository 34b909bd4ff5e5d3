"""`Saving` writes a checkpoint at the interval, when the run stops early, and at its end, and non-persistent ones between."""

from collections.abc import Callable

from primus.engine.config import CheckpointConfig
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["Saving"]


class Saving(Callback):
    """Decides when; how is `engine/checkpoint`."""

    def __init__(self, config: CheckpointConfig, save_non_persistent: Callable[[], object]) -> None:
        self._config, self._save_non_persistent = config, save_non_persistent

    def can_wait(self, loop: Loop) -> bool:
        return loop.stop_reason is None and not self._is_due(loop) and not self._is_due_between(loop)

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        if loop.stop_reason is not None or self._is_due(loop):
            self._save(loop)
        elif self._is_due_between(loop):
            self._save_non_persistent()

    def on_end(self, loop: Loop) -> None:
        if loop.state.iteration > 0:
            self._save(loop)

    def _save(self, loop: Loop) -> None:
        is_last = loop.is_complete and self._config.disable_last_saving
        if self._config.save is not None and not is_last:
            loop.save()

    def _is_due(self, loop: Loop) -> bool:
        interval = self._config.save_interval
        return interval is not None and loop.state.iteration % interval == 0

    def _is_due_between(self, loop: Loop) -> bool:
        interval = self._config.non_persistent.save_interval
        return interval is not None and loop.state.iteration % interval == 0 and not loop.is_complete
