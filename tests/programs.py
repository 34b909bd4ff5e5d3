"""Programs of the engine in processes of their own, forked from this one: torch is there, which takes a new Python seconds.

A program finds what it would find when a terminal starts it: no handler of pytest, no filter of warnings, no exit function.
"""

import atexit
import logging
import multiprocessing.util
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from primus.engine.leave import run_program

__all__ = ["Program"]

Main = Callable[[list[str]], int]


class Program:
    """A process, of a session of its own, that runs `main(arguments)` as `python -m` does; its stderr goes to a file."""

    def __init__(self, main: Main, *arguments: str | Path, stderr: Path, **env: str) -> None:
        self._stderr = stderr
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(main, [*map(str, arguments)], stderr, env)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number if one ended it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def end(self, timeout: float = 120.0) -> tuple[int, str]:
        """Wait for the end, or kill it after `timeout` seconds; return exit code and stderr."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.send_signal(signal.SIGKILL)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode, self._stderr.read_text()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.end()


def _with_multiprocessing(main: Main, arguments: list[str]) -> int:
    atexit.register(multiprocessing.util._exit_function)
    return main(arguments)


def _become(main: Main, arguments: list[str], stderr: Path, env: dict[str, str]) -> None:
    """Run the program in a forked child, which never returns."""
    try:
        os.setsid()
        atexit._clear()  # type: ignore[attr-defined]
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), 2)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        sys.unraisablehook, sys.excepthook = sys.__unraisablehook__, sys.__excepthook__
        logging.getLogger().handlers.clear()
        warnings.resetwarnings()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        torch.set_num_threads(1)
        os.environ.update(env)
        tempfile.tempdir = None  # TMPDIR is read again
        sys.argv = ["program", *arguments]
        run_program(partial(_with_multiprocessing, main))
    except SystemExit:
        atexit._run_exitfuncs()  # type: ignore[attr-defined]  # the last of them ends the process
    except BaseException:  # noqa: BLE001 - the parent reads it
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(1)
