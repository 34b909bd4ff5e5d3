"""Logging set-up: one console handler, and one file a rank inside the run folder.

`configure` is called once a process, by the CLI or by the worker; everybody else says `logging.getLogger(__name__)`.
"""

import logging
import sys
from pathlib import Path
from typing import TextIO

__all__ = ["FILE_ONLY", "configure", "log_file"]

FILE_ONLY = {"is_for_file_only": True}
"""`extra` of a record that the console has been told in another way."""

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


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the moment: a progress bar puts itself in its place, to stay below the lines."""

    def emit(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)
        super().emit(record)


def configure(*, console_level: str, file_level: str = "DEBUG", file: Path | None = None, prefix: str = "") -> None:
    """Send records of the `primus` logger to stderr and, if `file` is given, to that file as well."""
    root = logging.getLogger("primus")
    root.setLevel(_LEVELS["TRACE"])
    root.propagate = False
    root.handlers.clear()
    console = _Stderr()
    console.setLevel(_LEVELS[console_level.upper()])
    console.addFilter(lambda record: not hasattr(record, "is_for_file_only"))
    console.setFormatter(logging.Formatter(f"{prefix}%(message)s"))
    root.addHandler(console)
    if file is not None:
        sink = log_file(file)
        sink.setLevel(_LEVELS[file_level.upper()])
        root.addHandler(sink)


def log_file(file: Path) -> logging.FileHandler:
    """Open a log to append to; its folder is created if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sink = logging.FileHandler(file, encoding="utf-8")
    sink.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    return sink
