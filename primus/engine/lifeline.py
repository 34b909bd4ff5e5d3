"""A rank does not outlive the launcher that started it, nor a loader's worker its rank.

A launcher that is killed outright (`kill -9`, out of memory) cannot end its workers. Left alone they would train on, hold the
devices, and write into the run folder beside the next attempt. Linux ends a process with its parent if it asks for that.
"""

import ctypes
import os
import signal
import sys

__all__ = ["end_with_launcher", "end_with_parent", "name_launcher"]

_PR_SET_PDEATHSIG = 1
_VARIABLE = "PRIMUS_LAUNCHER_PID"


def name_launcher() -> None:
    """Tell the workers that this process is going to start who their launcher is."""
    os.environ[_VARIABLE] = str(os.getpid())


def end_with_launcher() -> None:
    """Ask Linux to kill this process as soon as the elastic agent that started it is gone."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    end_with_parent(int(os.environ.get(_VARIABLE, os.getppid())))


def end_with_parent(parent: int) -> None:
    """Ask Linux to kill this process as soon as its parent, the process of this number, is gone."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # gone before it could be asked for
        os.kill(os.getpid(), signal.SIGKILL)
