"""`Recorder`: when each operation of a step began and ended on this rank."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from primus.engine.pipeline.schedules import Op

__all__ = ["Recorder"]


class Recorder:
    """Times of one step's operations, the device's work included."""

    def __init__(self, wait: Callable[[], object]) -> None:
        """`wait` returns when the device has done what it was given."""
        self._wait = wait
        self._begin = 0.0
        self.events: list[tuple[Op, float, float]] = []
        """Operation, begin and end in milliseconds since the step began."""

    def begin(self) -> None:
        """Start a step."""
        self._wait()
        self.events, self._begin = [], time.perf_counter()

    @contextmanager
    def around(self, op: Op) -> Iterator[None]:
        """Time the body as the operation."""
        start = self._now()
        yield
        self._wait()
        self.events.append((op, start, self._now()))

    def mean(self, kind: str) -> float:
        """Return the mean time of the operations of a kind, in milliseconds; 0 without any."""
        times = [end - start for op, start, end in self.events if op.kind == kind]
        return sum(times) / len(times) if times else 0.0

    def _now(self) -> float:
        return (time.perf_counter() - self._begin) * 1000.0
