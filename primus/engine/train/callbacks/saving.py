"""`Saving` writes a checkpoint at the interval, when the run stops early, and at its end."""

from primus.engine.config import CheckpointConfig
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["Saving"]


class Saving(Callback):
    """Decides when; how is `engine/checkpoint`."""

    def __init__(self, config: CheckpointConfig) -> None:
        self._config = config

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        interval = self._config.save_interval
        if loop.stop_reason is not None or (interval and loop.state.iteration % interval == 0):
            self._save(loop)

    def on_end(self, loop: Loop) -> None:
        if loop.state.iteration > 0:
            self._save(loop)

    def _save(self, loop: Loop) -> None:
        is_last = loop.is_complete and self._config.disable_last_saving
        if self._config.save is not None and not is_last:
            loop.save()
