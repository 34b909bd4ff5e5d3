"""`JsonLines`: the rows of a JSONL file, read where they lie; only where each begins is held in memory."""

import hashlib
import json
import os
import re
import weakref
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from primus.errors import InputError, RunError

__all__ = ["JsonLines", "Listed", "Part", "Row", "Rows", "file_state", "parsed"]

Row = Mapping[str, Any]

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""How JSON writes one half of a character that is beyond 16 bits."""


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
    return _state(file, file.stat())


def _state(file: Path, status: os.stat_result) -> list[object]:
    return [str(file.absolute()), status.st_size, status.st_mtime_ns]


def parsed(data: bytes) -> Any:
    """Return the value that JSON says; ValueError if it is none, or holds what no tokenizer takes."""
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if _HALF.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"it has {half!a}, one half of a character, without the other") from error
    return value


class JsonLines:
    """A JSONL file; blank lines are no rows. It may not change while it is read, for rows would be found where none are."""

    def __init__(self, file: Path) -> None:
        """Note where rows begin; InputError if the file cannot be read or has none."""
        self._file = file
        try:
            with file.open("rb") as stream:
                self._state = _state(file, os.fstat(stream.fileno()))
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
        self._bounds = np.array([*starts, position], np.int64)
        self._lines = np.frombuffer(lines, np.int64)
        self._descriptor: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """An open file does not go from process to process: whoever reads opens one."""
        return {**vars(self), "_descriptor": None}

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> Row:
        """Return a row; InputError if the line is no JSON map, RunError if the file is another one than before."""
        line = self._line(number)
        try:
            row = parsed(line)
        except ValueError as error:
            raise InputError(f"{self.name(number)} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{self.name(number)} is no map of fields")
        return row

    def _line(self, number: int) -> bytes:
        start, end = int(self._bounds[number]), int(self._bounds[number + 1])
        try:
            if self._descriptor is None:
                # Kept open: a file that is replaced later is still the one that was looked at.
                self._descriptor = os.open(self._file, os.O_RDONLY)
                weakref.finalize(self, os.close, self._descriptor)
            # Not by a map, which ends the process where a file was cut.
            line = os.pread(self._descriptor, end - start, start)
            state = _state(self._file, os.fstat(self._descriptor))
        except OSError as error:
            raise RunError(f"{self.name(number)} cannot be read any more: {error.strerror or error}") from error
        if state != self._state:
            raise RunError(f"{self._file} was changed while it was read: start again, and write other rows to another file")
        return line

    def name(self, number: int) -> str:
        return f"{self._file}:{self._lines[number]}"

    def state(self) -> object:
        return self._state


class Listed:
    """Rows that a library or a JSON list holds."""

    def __init__(self, rows: Sequence[Any], what: str, state: object = None, *, is_table: bool = False) -> None:
        """`state` tells them from others; what a library holds says so itself, and is asked for it without one.

        In a table maps within rows have all one another's fields, null where they lack one: these are taken out.
        """
        self._rows, self._what, self._state, self._is_table = rows, what, state, is_table

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Row:
        row = self._rows[number]
        if not isinstance(row, Mapping):
            raise InputError(f"{self.name(number)} is no map of fields")
        return {field: _without_nulls(value) for field, value in row.items()} if self._is_table else row

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


def _without_nulls(value: Any) -> Any:
    """Return a value without the fields of maps in it that are null."""
    if isinstance(value, Mapping):
        return {field: _without_nulls(each) for field, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value
