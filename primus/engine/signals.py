"""`signals_held`: signals wait while something is under way that would lose them.

Ctrl-C is an exception raised wherever Python happens to be. What C code imports must not meet it: numpy that is half there
counts as no numpy for torch, which goes on without a word.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["signals_held"]


@contextmanager
def signals_held(*numbers: signal.Signals) -> Iterator[None]:
    """Let signals of these numbers wait; what came meanwhile is answered at the end, so KeyboardInterrupt is raised there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
