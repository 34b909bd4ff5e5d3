"""Times of named stretches of code, left for whoever listens; knows no sink.

A `Trace` is created by the run and passed down. `span` times its body if its level is enabled, `drain` hands the interval's
times over.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Trace"]


@dataclass(slots=True)
class Trace:
    """Collects the span times of this rank."""

    level: int = 0
    """Spans above this level are not timed (`timing_log_level`)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each span since the last drain."""

    @contextmanager
    def span(self, name: str, level: int = 0) -> Iterator[None]:
        """Add the duration of the body to the span's time."""
        if level > self.level:
            yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def drain(self) -> dict[str, float]:
        """Hand over the span times, and start afresh."""
        taken, self.seconds = self.seconds, {}
        return taken
