"""`JsonLines`: the rows of a JSONL file, read where they lie; only where each begins is held in memory."""

import hashlib
import json
import mmap
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from primus.errors import InputError

__all__ = ["JsonLines", "Listed", "Part", "Row", "Rows", "file_state"]

Row = Mapping[str, Any]


class Rows(Protocol):
    """Rows by number, each with a name for messages."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Row: ...
    def name(self, number: int) -> str:
        """Return file and place of a row, for a message."""

    def state(self) -> object:
        """Return what tells these rows from others, and from what they were before; a value of JSON."""


def file_state(file: Path) -> list[object]:
    """Return a file's name, size and time, by which it is known to be the same."""
    status = file.stat()
    return [str(file.absolute()), status.st_size, status.st_mtime_ns]


class JsonLines:
    """A JSONL file; blank lines are no rows."""

    def __init__(self, file: Path) -> None:
        """Note where rows begin; InputError if the file cannot be read or has none."""
        self._file = file
        try:
            with file.open("rb") as stream:
                # Eight bytes a number: a list of them would hold five times as much.
                starts, lines = array("q"), array("q")
                position = 0
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        starts.append(position)
                        lines.append(number)
                    position += len(line)
        except OSError as error:
            raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
        if not starts:
            raise InputError(f"{file} has no rows")
        self._starts, self._lines = np.frombuffer(starts, np.int64), np.frombuffer(lines, np.int64)
        self._map: mmap.mmap | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A map does not go from process to process: whoever reads opens one."""
        return {**vars(self), "_map": None}

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> Row:
        """Return a row; InputError if the line is no JSON map."""
        if self._map is None:
            with self._file.open("rb") as stream:
                self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.seek(int(self._starts[number]))
        try:
            row = json.loads(self._map.readline())
        except ValueError as error:
            raise InputError(f"{self.name(number)} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{self.name(number)} is no map of fields")
        return row

    def name(self, number: int) -> str:
        return f"{self._file}:{self._lines[number]}"

    def state(self) -> object:
        return file_state(self._file)


class Listed:
    """Rows that a library or a JSON list holds."""

    def __init__(self, rows: Sequence[Any], what: str, state: object = None) -> None:
        """`state` tells them from others; what a library holds says so itself, and is asked for it without one."""
        self._rows, self._what, self._state = rows, what, state

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        row = self._rows[number]
        if not isinstance(row, Mapping):
            raise InputError(f"{self.name(number)} is no map of fields")
        return row

    def name(self, number: int) -> str:
        return f"{self._what}, row {number}"

    def state(self) -> object:
        return [self._what, len(self._rows), self._state or str(getattr(self._rows, "_fingerprint", ""))]


class Part:
    """Some rows of others."""

    def __init__(self, rows: Rows, numbers: Sequence[int]) -> None:
        self._rows, self._numbers = rows, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Row:
        return self._rows[int(self._numbers[number])]

    def name(self, number: int) -> str:
        return self._rows.name(int(self._numbers[number]))

    def state(self) -> object:
        numbers = np.asarray(self._numbers, np.int64).tobytes()
        return [self._rows.state(), hashlib.md5(numbers, usedforsecurity=False).hexdigest()]
