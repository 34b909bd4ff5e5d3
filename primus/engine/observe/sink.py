"""What every listener of a run looks like: it receives records and knows nothing of how they were measured.

`Sink` is the name to use. A record is a flat map from metric names to numbers; `iteration` and `consumed_samples` are
always in it.
"""

from collections.abc import Mapping

__all__ = ["Record", "Sink"]

Record = Mapping[str, float | int]


class Sink:
    """Receives records on the rank that reports; every method does nothing unless overridden."""

    def step(self, record: Record) -> None:
        """Take the values of one iteration; called after every iteration."""

    def write(self, record: Record) -> None:
        """Take the record of a logged interval (`log_interval`): means, rates, evaluations."""

    def close(self) -> None:
        """Flush; called once, also when the run fails."""
