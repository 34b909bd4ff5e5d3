"""`BlockAverage`: speed averaged over blocks of iterations, the first ones left out.

An interval that begins within the first `skip` iterations of the process does not count; a block that holds `length` iterations
is followed by a new one, so the figure follows slow drift. Times and TFLOP/s average arithmetically, tokens a second
harmonically (each is a rate over equal work), all weighted by the iterations of their intervals.
"""

from dataclasses import dataclass, field
from statistics import fmean, harmonic_mean

__all__ = ["BlockAverage"]


@dataclass(slots=True)
class BlockAverage:
    """The present block."""

    skip: int
    """Iterations left out at the start of the process."""
    length: int
    """Iterations of a full block."""
    seen: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    """How many each row is about."""

    def add(self, record: dict[str, float], iterations: int) -> dict[str, float]:
        """Count in the record of some iterations; return averages of its time and rates, under their names with `_average`."""
        begin = self.seen
        self.seen += iterations
        if begin < self.skip:
            return {}
        if sum(self.iterations) >= self.length:
            self.rows.clear()
            self.iterations.clear()
        self.rows.append(record)
        self.iterations.append(iterations)
        return {
            "iteration_time_ms_average": fmean(self._column("iteration_time_ms"), self.iterations),
            "tokens_per_second_average": harmonic_mean(self._column("tokens_per_second"), self.iterations),
            "tflops_per_device_average": fmean(self._column("tflops_per_device"), self.iterations),
        }

    def _column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]
