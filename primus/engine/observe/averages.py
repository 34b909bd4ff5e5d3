"""`BlockAverage`: speed averaged over blocks of iterations, the first ones left out.

Warm-up iterations (`log_avg_skip_iterations`) never count; a block restarts when it holds `log_avg_reset_interval`
records, so the figure follows slow drift. Times and TFLOP/s average arithmetically, tokens a second harmonically (each is
a rate over equal work).
"""

from dataclasses import dataclass, field
from statistics import fmean, harmonic_mean

__all__ = ["BlockAverage"]


@dataclass(slots=True)
class BlockAverage:
    """The present block."""

    skip: int
    """Records left out at the start of the process."""
    length: int
    """Records of a full block."""
    seen: int = 0
    rows: list[dict[str, float]] = field(default_factory=list)

    def add(self, record: dict[str, float]) -> dict[str, float]:
        """Count a record in; return the averages of its time and rates, each under its name with `_average`."""
        self.seen += 1
        if self.seen <= self.skip:
            return {}
        if len(self.rows) == self.length:
            self.rows.clear()
        self.rows.append(record)
        return {
            "iteration_time_ms_average": fmean(row["iteration_time_ms"] for row in self.rows),
            "tokens_per_second_average": harmonic_mean([row["tokens_per_second"] for row in self.rows]),
            "tflops_per_device_average": fmean(row["tflops_per_device"] for row in self.rows),
        }
