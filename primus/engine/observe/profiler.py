"""`Profiler` records the iterations [`profile_step_start`, `profile_step_end`) and always writes what it recorded.

The window counts global iterations, so a resumed run profiles the iterations that its configuration names.
"""

import logging
import time
from pathlib import Path

import torch

from primus.engine.config import ProfilingConfig

__all__ = ["Profiler"]

log = logging.getLogger(__name__)


class Profiler:
    """A torch.profiler window on this rank."""

    def __init__(self, config: ProfilingConfig, *, folder: Path, exp_name: str, rank: int) -> None:
        self._config, self._folder, self._name = config, folder, f"primus-megatron-exp[{exp_name}]-rank[{rank}]"
        self._active: torch.profiler.profile | None = None

    @classmethod
    def is_wanted(cls, config: ProfilingConfig, rank: int) -> bool:
        """True if this rank is to be profiled."""
        chosen = not config.profile_ranks or rank in config.profile_ranks
        if not (config.profile and config.use_pytorch_profiler and chosen):
            return False
        if not _activities(config):
            log.warning("nothing is profiled: disable_profiler_activity_cpu is true, and there is no accelerator")
        return bool(_activities(config))

    def before_iteration(self, iteration: int) -> None:
        """Open or close the window; `iteration` is the one about to run, counted from 1."""
        inside = self._config.profile_step_start <= iteration < self._config.profile_step_end
        if inside and self._active is None:
            self._start()
        elif not inside:
            self.finish()

    def finish(self) -> None:
        """Write the trace of an open window."""
        if self._active is None:
            return
        self._active.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        suffix = ".pt.trace.json.gz" if self._config.use_gzip else ".pt.trace.json"
        file = self._folder / f"{self._name}.{time.time_ns()}{suffix}"
        self._active.export_chrome_trace(str(file))
        self._active = None
        log.info("profiler trace written to %s", file)

    def _start(self) -> None:
        self._active = torch.profiler.profile(
            activities=_activities(self._config),
            record_shapes=self._config.record_shapes,
            with_stack=self._config.with_stack,
        )
        self._active.start()


def _activities(config: ProfilingConfig) -> list[torch.profiler.ProfilerActivity]:
    """Return what to record; torch would read an empty list as everything."""
    kinds = torch.profiler.ProfilerActivity
    return [kinds.CPU] * config.with_cpu + [kinds.CUDA] * torch.cuda.is_available()
