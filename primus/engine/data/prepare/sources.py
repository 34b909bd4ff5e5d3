"""Where documents come from: text files, JSON lines, parquet; a folder or a glob stands for its files. No torch.

Work is cut into `Unit`s of a few megabytes, each read by one process. The cut depends on the files alone, so a run that
was stopped finds the same units again. Text and JSON lines may be gzipped (`.gz`); such a file is one unit.
"""

import glob
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from primus.errors import InputError

__all__ = ["Document", "LineCounter", "Unit", "cut_into_units", "find_files", "read_unit"]

_JSON_LINES = {".jsonl", ".ndjson", ".json"}
_PARQUET = {".parquet"}
_SMALLEST_UNIT, _USUAL_UNIT = 256 << 10, 4 << 20
"""Bytes of a unit: the usual size, or less where the input is too small to keep every process busy with that."""
_FEW_UNITS, _MANY_UNITS = 64, 4096
"""Larger inputs are cut into larger units, so that the folder of parts stays small."""
_UNREADABLE = (OSError, EOFError, zlib.error, ValueError)
"""What files that are not there any more, forbidden, cut short or not what their name says make of reading."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text, or the reason why there is none."""

    file: str
    line: int
    """Counted from 1 within the unit; 0 where the file is one document."""
    text: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """Work for one process: whole text files, a byte range of a file of lines, or a row group of a parquet file."""

    kind: str
    """`files`, `text` (a document a line), `json` or `parquet`."""
    files: tuple[str, ...]
    start: int = 0
    """First byte, or the row group."""
    stop: int | None = None
    """Byte behind the last; None: the end of the file."""
    size: int = 0
    """Bytes of input, for the progress bar."""


def find_files(inputs: Sequence[str]) -> list[Path]:
    """Return the files that the inputs name, in a fixed order; InputError for an input that names none."""
    files: dict[Path, None] = {}
    for name in inputs:
        try:
            found = _found(name)
        except OSError as error:
            raise InputError(f"input {name}: {error.filename} cannot be read: {error.strerror}") from error
        if not found:
            nothing = (
                "the folder holds no file"
                if Path(name).is_dir()
                else "there is no such file or folder, and no file fits the pattern"
            )
            raise InputError(f"input {name}: {nothing}")
        files |= dict.fromkeys(found)
    return list(files)


def _found(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        list(path.iterdir())  # a folder that may not be read is not an empty one, as it is for rglob
        return sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    if path.is_file():
        return [path]
    return sorted(Path(p) for p in glob.glob(name, recursive=True) if Path(p).is_file())  # noqa: PTH207 - absolute globs


def cut_into_units(files: Sequence[Path], *, text_lines: bool = False) -> list[Unit]:
    """Return the work in the order in which it ends up in the dataset; with `text_lines` each line of text is a document."""
    total = sum(file.stat().st_size for file in files)
    size = max(_SMALLEST_UNIT, min(_USUAL_UNIT, total // _FEW_UNITS), total // _MANY_UNITS)
    units: list[Unit] = []
    waiting: list[Path] = []
    waiting_size = 0
    for file in files:
        kind = _kind(file, text_lines)
        if waiting and (kind != "files" or waiting_size >= size):
            units.append(_files_unit(waiting))
            waiting, waiting_size = [], 0
        if kind == "files":
            waiting.append(file)
            waiting_size += file.stat().st_size
        elif kind == "parquet":
            units += _parquet_units(file)
        else:
            units += _line_units(file, kind, size)
    return [*units, _files_unit(waiting)] if waiting else units


def read_unit(unit: Unit, json_key: str) -> Iterator[Document]:
    """Yield the documents of a unit; one, or a file, that cannot be read carries its problem."""
    if unit.kind == "files":
        yield from map(_read_file, unit.files)
        return
    try:
        if unit.kind == "parquet":
            yield from _read_row_group(unit, json_key)
        else:
            parse = partial(_parse_json, key=json_key) if unit.kind == "json" else _parse_text
            yield from _read_lines(unit, parse)
    except _UNREADABLE as error:
        yield _unreadable(unit.files[0], error)


class LineCounter:
    """Tells how many lines, or rows, of its file stand before a unit; asked in order, it reads a file once."""

    def __init__(self) -> None:
        self._file, self._at, self._count, self._last = "", 0, 0, b"\n"

    def place(self, unit: Unit, file: str, line: int) -> str:
        """Return `file:line` for a line counted within a unit; the file alone for line 0."""
        return f"{file}:{self.before(unit) + line}" if line else file

    def before(self, unit: Unit) -> int:
        """Return the lines or rows before a unit."""
        if unit.kind == "parquet":
            import pyarrow.parquet as pq

            metadata = pq.ParquetFile(unit.files[0]).metadata
            return sum(int(metadata.row_group(group).num_rows) for group in range(unit.start))
        if unit.start == 0:
            return 0
        if self._file != unit.files[0] or self._at > unit.start:
            self._file, self._at, self._count, self._last = unit.files[0], 0, 0, b"\n"
        with Path(self._file).open("rb") as file:
            file.seek(self._at)
            while self._at < unit.start and (block := file.read(min(unit.start - self._at, 8 << 20))):
                self._at += len(block)
                self._count += block.count(b"\n")
                self._last = block[-1:]
        return self._count + (self._last != b"\n")


def _kind(file: Path, text_lines: bool) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() != ".gz"]
    last = suffixes[-1] if suffixes else ""
    if last in _JSON_LINES:
        return "json"
    if last in _PARQUET:
        return "parquet"
    return "text" if text_lines else "files"


def _files_unit(files: Sequence[Path]) -> Unit:
    return Unit("files", tuple(map(str, files)), size=sum(file.stat().st_size for file in files))


def _line_units(file: Path, kind: str, size: int) -> list[Unit]:
    length = file.stat().st_size
    try:
        with _open(file) as opened:
            is_list = kind == "json" and opened.read(64).lstrip()[:1] == b"["
    except _UNREADABLE:  # told of when the unit is read, as of any other fault
        return [Unit(kind, (str(file),), size=length)]
    if is_list:
        raise InputError(f"{file} is one JSON list; write one object a line (for example with `jq -c .[]`)")
    if file.suffix.lower() == ".gz":
        return [Unit(kind, (str(file),), size=length)]
    cuts = range(0, max(length, 1), size)
    return [Unit(kind, (str(file),), s, min(s + size, length), min(size, length - s)) for s in cuts]


def _parquet_units(file: Path) -> list[Unit]:
    import pyarrow.parquet as pq

    try:
        metadata = pq.ParquetFile(file).metadata
    except _UNREADABLE:
        return [Unit("parquet", (str(file),), size=file.stat().st_size)]
    groups = range(metadata.num_row_groups)
    return [Unit("parquet", (str(file),), group, size=metadata.row_group(group).total_byte_size) for group in groups]


def _unreadable(name: str, error: Exception) -> Document:
    # The system's own words: the text of an OSError repeats the file's name.
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return Document(name, 0, "", f"cannot be read: {reason}")


def _open(file: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb"))


def _read_file(name: str) -> Document:
    try:
        with _open(Path(name)) as file:
            data = file.read()
    except _UNREADABLE as error:
        return _unreadable(name, error)
    return _parse_text(name, 0, data)


def _read_lines(unit: Unit, parse: Callable[[str, int, bytes], Document]) -> Iterator[Document]:
    """Yield the lines that start in the unit's bytes, but for blank ones of JSON, which separate nothing."""
    (name,) = unit.files
    with _open(Path(name)) as file:
        if unit.start:
            file.seek(unit.start - 1)
            if file.read(1) != b"\n":
                file.readline()
        number = 0
        while (unit.stop is None or file.tell() < unit.stop) and (line := file.readline()):
            number += 1
            if unit.kind == "text" or line.strip():
                yield parse(name, number, line.rstrip(b"\r\n"))


def _parse_text(name: str, number: int, data: bytes) -> Document:
    try:
        return Document(name, number, data.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Document(name, number, "", f"is not UTF-8: {error.reason} at byte {error.start}")


def _parse_json(name: str, number: int, line: bytes, *, key: str) -> Document:
    try:
        row = json.loads(line)
    except RecursionError:
        return Document(name, number, "", "is nested too deeply")
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        return Document(name, number, "", f"is not JSON: {error}")
    if not isinstance(row, dict):
        return Document(name, number, "", f"is a {type(row).__name__}, not an object")
    if key not in row:
        return Document(name, number, "", f"has no {key}; it has {', '.join(row) or 'nothing'} (--json-key names the field)")
    return _of_value(name, number, row[key], key)


def _read_row_group(unit: Unit, key: str) -> Iterator[Document]:
    import pyarrow.parquet as pq

    (name,) = unit.files
    file = pq.ParquetFile(name)
    if key not in file.schema_arrow.names:
        raise InputError(f"{name} has no column {key}; it has {', '.join(file.schema_arrow.names)}: choose one with --json-key")
    number = 0
    for batch in file.iter_batches(batch_size=1024, row_groups=[unit.start], columns=[key]):
        for value in batch.column(0).to_pylist():
            number += 1
            yield _of_value(name, number, value, key)


def _of_value(name: str, number: int, value: object, key: str) -> Document:
    if not isinstance(value, str):
        return Document(name, number, "", f"has a {type(value).__name__} under {key}, not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        return Document(name, number, "", f"has half a surrogate pair under {key}, at character {error.start}")
    return Document(name, number, value)
