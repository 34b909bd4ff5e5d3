"""Watchdogs over losses and gradients: the spike rule of Megatron-Core.

`SpikeWatch` learns the largest magnitude of the first 100 observations of a context and from then on reports what is ten
times as large. The threshold is frozen after that: a run that starts to diverge must not raise its own bar. NaN and Inf are
not its business.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

__all__ = ["SpikeWatch"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    count: int = 0
    largest: float = 0.0


class SpikeWatch:
    """One threshold a context (`loss`, `grads`); local to its rank."""

    def __init__(self, *, factor: float = 10.0, num_samples: int = 100) -> None:
        self.factor, self.num_samples = factor, num_samples
        self._seen: dict[str, _Seen] = {}

    def check(self, context: str, value: float, where: str = "") -> bool:
        """Return whether the value is unexpectedly large, and warn if so; `where` completes the warning."""
        if not math.isfinite(value):
            return False
        seen = self._seen.setdefault(context, _Seen())
        if seen.count < self.num_samples:
            seen.count += 1
            seen.largest = max(seen.largest, abs(value))
            if seen.count == self.num_samples:
                log.info("Max value for %s: %g", context, seen.largest)
            return False
        is_spike = abs(value) >= self.factor * seen.largest
        if is_spike:
            log.warning(
                "unexpectedly large %s %g%s: at least %g times %g, the largest of the first %d",
                *(context, value, f" ({where})" if where else "", self.factor, seen.largest, self.num_samples),
            )
        return is_spike

    def state_dict(self) -> dict[str, Any]:
        """Return counts and thresholds by context."""
        return {context: {"count": seen.count, "largest": seen.largest} for context, seen in self._seen.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with saved counts and thresholds."""
        self._seen = {context: _Seen(**values) for context, values in state.items()}
