"""A rank does not outlive the launcher that started it.

A launcher that is killed outright (`kill -9`, out of memory) cannot end its workers. Left alone they would train on, hold the
devices, and write into the run folder beside the next attempt. Linux ends a process with its parent if it asks for that.
"""

import ctypes
import os
import signal
import sys

__all__ = ["end_with_launcher"]

_PR_SET_PDEATHSIG = 1


def end_with_launcher() -> None:
    """Ask Linux to kill this process as soon as the elastic agent that started it is gone."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
