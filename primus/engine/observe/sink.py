"""What every listener of a run looks like: it receives records and knows nothing of how they were measured.

`Sink` is the name to use. A record is a flat map from metric names to numbers; `iteration` and `consumed_samples` are
always in it.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["Record", "Sink", "close_all"]

log = logging.getLogger(__name__)

Record = Mapping[str, float | int]


class _Closable(Protocol):
    def close(self, *, failed: bool) -> None: ...


class Sink:
    """Receives records on the rank that reports; every method does nothing unless overridden."""

    def step(self, record: Record) -> None:
        """Take the values of one iteration; called after every iteration."""

    def write(self, record: Record) -> None:
        """Take the record of a logged interval (`log_interval`): means, rates, evaluations."""

    def close(self, *, failed: bool) -> None:
        """Flush; called once, also when the run fails or is interrupted (`failed`)."""


def close_all(listeners: Iterable[_Closable], *, failed: bool) -> None:
    """Close every listener, whatever another does; then raise the first error, unless the run's own is to be told."""
    errors: list[Exception] = []
    for listener in listeners:
        try:
            listener.close(failed=failed)
        except Exception as error:  # noqa: BLE001 - the others have still to be closed
            log.warning("%s could not be closed: %s: %s", type(listener).__name__, type(error).__name__, error)
            errors.append(error)
    if errors and not failed:
        raise errors[0]
