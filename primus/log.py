"""Logging set-up: one console handler, and one file a rank inside the run folder.

`configure` is called once a process, by the CLI or by the worker; everybody else says `logging.getLogger(__name__)`.
"""

import logging
import sys
from pathlib import Path

__all__ = ["configure", "level_number"]

_LEVELS = {
    "TRACE": 5,
    "DEBUG": 10,
    "INFO": 20,
    "SUCCESS": 25,
    "WARNING": 30,
    "WARN": 30,
    "ERROR": 40,
    "CRITICAL": 50,
    "FATAL": 50,
}


def level_number(name: str) -> int:
    """Return the numeric level of a sink level name such as `DEBUG` or `TRACE`; KeyError if there is none."""
    return _LEVELS[name.upper()]


def configure(*, console_level: str, file_level: str = "DEBUG", file: Path | None = None, prefix: str = "") -> None:
    """Send records of the `primus` logger to stderr and, if `file` is given, to that file as well."""
    root = logging.getLogger("primus")
    root.setLevel(_LEVELS["TRACE"])
    root.propagate = False
    root.handlers.clear()
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level_number(console_level))
    console.setFormatter(logging.Formatter(f"{prefix}%(message)s"))
    root.addHandler(console)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        sink = logging.FileHandler(file, encoding="utf-8")
        sink.setLevel(level_number(file_level))
        sink.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
        root.addHandler(sink)
