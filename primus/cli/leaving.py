"""`leaving_on_sigterm`: a verb that is told to end clears away what it began."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["leaving_on_sigterm"]


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does, so that its processes are ended and what they share is given back."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
