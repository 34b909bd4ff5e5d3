"""`Phases`: the spans of a step as what a rank is doing, with the most memory that each took."""

from collections.abc import Iterator
from contextlib import contextmanager

from primus.engine.rehearsal.live import Live

__all__ = ["PHASES", "Phases"]

PHASES = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "weight-gradient-compute": "backward",
    "forward-backward": "between stages",
    "all-grads-sync": "gradients",
    "optimizer": "update",
}
"""What spans are called here; others belong to the span around them."""
_OUTSIDE = "loss"


class Phases:
    """Takes the place of a trace: notes where a step is, not how long it takes."""

    def __init__(self, live: Live | None = None) -> None:
        self._live, self._open = live, [_OUTSIDE]
        if live is not None:
            live.reset_peak()
        self.peaks: dict[str, int] = {}
        """The most bytes in use in each phase."""

    def current(self) -> str:
        """Return what is going on."""
        return self._open[-1]

    @contextmanager
    def span(self, name: str, level: int = 0) -> Iterator[None]:
        """Call the body by its phase."""
        self._turn(PHASES.get(name, self.current()))
        try:
            yield
        finally:
            self._note()
            self._open.pop()
            if self._live is not None:
                self._live.reset_peak()

    def _turn(self, phase: str) -> None:
        self._note()
        self._open.append(phase)
        if self._live is not None:
            self._live.reset_peak()

    def _note(self) -> None:
        if self._live is not None:
            self._live.refresh()
            self.peaks[self.current()] = max(self.peaks.get(self.current(), 0), self._live.peak)
