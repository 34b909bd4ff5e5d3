"""Times of named stretches of code, left for whoever listens; knows no sink.

A `Trace` is created by the run and passed down. `span` times its body if its level is enabled, `drain` hands the interval's
times over. An accelerator works behind the host's back: the timers that a level switches on wait for it at both ends, so that
its time is counted where it arose, at the price of a slower run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Spans", "Trace"]


class Spans(Protocol):
    """Who is told which stretch of a step runs."""

    def span(self, name: str, level: int = 0) -> AbstractContextManager[None]:
        """Surround the stretch `name`; higher levels are finer."""


@dataclass(slots=True)
class Trace:
    """Collects the span times of this rank."""

    level: int = 0
    """Spans above this level are not timed (`timing_log_level`)."""
    wait: Callable[[], object] = lambda: None
    """Returns when the device has done what it was given; called around spans above level 0."""
    meet: Callable[[], object] = lambda: None
    """Returns when all ranks have called it; called before spans of level 1 (`barrier_with_L1_time`)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each span since the last drain."""

    @contextmanager
    def span(self, name: str, level: int = 0) -> Iterator[None]:
        """Add the duration of the body to the span's time."""
        if level > self.level:
            yield
            return
        wait = self.wait if level else lambda: None
        wait()
        if level == 1:
            self.meet()
        start = time.perf_counter()
        try:
            yield
            wait()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def drain(self) -> dict[str, float]:
        """Hand over the span times, and start afresh."""
        taken, self.seconds = self.seconds, {}
        return taken
