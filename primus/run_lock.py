"""One run at a time in a run folder: its rank 0 holds a lock on `.lock` there for as long as the process lives.

The kernel takes the lock back however a process ends, so a killed run bars nobody. It is a record lock (`lockf`): forked loader
processes do not inherit it, as they would a `flock`, and cannot hold it longer than the run; network file systems know it too.
"""

import errno
import fcntl
import os
import socket
import time
from pathlib import Path

from primus.errors import InputError

__all__ = ["check_free", "occupy"]

_NAME = ".lock"
_PATIENCE_S = 2.0
"""A killed process may need a moment to be gone when its next attempt starts."""


def occupy(folder: Path) -> None:
    """Lock a run folder until this process ends; InputError names the process that has it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise InputError(f"the run folder {folder} cannot be written: {error.strerror}") from error
    _lock(file, folder)
    os.truncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())


def check_free(folder: Path) -> None:
    """InputError if a run is under way in the folder."""
    try:
        file = os.open(folder / _NAME, os.O_RDWR)
    except OSError:
        return
    try:
        _lock(file, folder)
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                return  # a file system without locks
        if time.monotonic() > deadline:
            holder = os.pread(file, 1000, 0).decode() or "another process"
            raise InputError(
                f"{holder} is training in the run folder {folder}: "
                "wait for it or stop it, or choose another exp_name or workspace"
            )
        time.sleep(0.05)
