"""Notes (name, value, reduction) and spans that the lower rooms leave for whoever listens; knows no sink.

A `Trace` is created by the run and passed down. `note` keeps tensors as they are, on their device: nothing waits for the
device until `drain` hands the interval's notes over. `span` times a named stretch of code if its level is enabled.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Note", "Reduction", "Trace"]

Reduction = Literal["mean", "sum", "max", "last"]


@dataclass(slots=True)
class Note:
    """Everything noted under one name since the last drain; values are numbers or scalar tensors."""

    reduction: Reduction
    values: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """Collects notes and span times of this rank."""

    level: int = 0
    """Spans above this level are not timed (`timing_log_level`)."""
    notes: dict[str, Note] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in each span since the last drain."""

    def note(self, name: str, value: Any, reduction: Reduction = "mean") -> None:
        """Record a value; values under one name share one reduction."""
        self.notes.setdefault(name, Note(reduction)).values.append(value)

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

    def drain(self) -> tuple[dict[str, Note], dict[str, float]]:
        """Hand over notes and span times, and start afresh."""
        taken = self.notes, self.seconds
        self.notes, self.seconds = {}, {}
        return taken
