"""Where documents come from: text files, JSON lines, parquet; a folder or a glob stands for its files. No torch.

Work is cut into `Unit`s of a few megabytes, each read by one process. The cut depends on the files alone, so a run that
was stopped finds the same units again.
"""

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from primus.errors import InputError

__all__ = ["Document", "Unit", "cut_into_units", "find_files", "read_unit"]

_JSON_LINES = {".jsonl", ".ndjson", ".json"}
_PARQUET = {".parquet"}
_UNIT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """One text, or the reason why there is none."""

    where: str
    """`file:line` or `file`."""
    text: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Unit:
    """Work for one process: whole text files, a byte range of a JSON-lines file, or a row group of a parquet file."""

    kind: str
    files: tuple[str, ...]
    start: int = 0
    """First byte, or the row group."""
    stop: int = 0
    size: int = 0
    """Bytes of input, for the progress bar."""


def find_files(inputs: Sequence[str]) -> list[Path]:
    """Return the files that the inputs name, in a fixed order; InputError for an input that names none."""
    files: dict[Path, None] = {}
    for name in inputs:
        path = Path(name)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        elif path.is_file():
            found = [path]
        else:
            found = sorted(Path(p) for p in glob.glob(name, recursive=True) if Path(p).is_file())  # noqa: PTH207 - absolute globs
        if not found:
            raise InputError(f"input {name}: no such file, and no file in or under it")
        files |= dict.fromkeys(found)
    return list(files)


def cut_into_units(files: Sequence[Path]) -> list[Unit]:
    """Return the work in the order in which it ends up in the dataset."""
    units: list[Unit] = []
    texts: list[str] = []
    size = 0
    for file in files:
        length = file.stat().st_size
        kind = _kind(file)
        if kind == "text":
            texts.append(str(file))
            size += length
        if texts and (kind != "text" or size >= _UNIT_BYTES):
            units.append(Unit("text", tuple(texts), size=size))
            texts, size = [], 0
        if kind == "json":
            starts = range(0, max(length, 1), _UNIT_BYTES)
            units += [Unit("json", (str(file),), s, min(s + _UNIT_BYTES, length), min(_UNIT_BYTES, length - s)) for s in starts]
        elif kind == "parquet":
            units += _parquet_units(file)
    if texts:
        units.append(Unit("text", tuple(texts), size=size))
    return units


def read_unit(unit: Unit, json_key: str) -> Iterator[Document]:
    """Yield the documents of a unit; one that cannot be read carries its problem."""
    if unit.kind == "text":
        for name in unit.files:
            yield _read_text(name)
    elif unit.kind == "json":
        yield from _read_json_lines(unit, json_key)
    else:
        yield from _read_row_group(unit, json_key)


def _kind(file: Path) -> str:
    suffix = file.suffix.lower()
    return "json" if suffix in _JSON_LINES else "parquet" if suffix in _PARQUET else "text"


def _parquet_units(file: Path) -> list[Unit]:
    import pyarrow.parquet as pq

    try:
        metadata = pq.ParquetFile(file).metadata
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as parquet: {error}") from error
    groups = range(metadata.num_row_groups)
    return [Unit("parquet", (str(file),), group, size=metadata.row_group(group).total_byte_size) for group in groups]


def _read_text(name: str) -> Document:
    try:
        return Document(name, Path(name).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        return Document(name, "", f"is not UTF-8: {error.reason} at byte {error.start}")


def _read_json_lines(unit: Unit, key: str) -> Iterator[Document]:
    """A line belongs to the unit in which it starts."""
    (name,) = unit.files
    with Path(name).open("rb") as file:
        number = _lines_before(file, unit.start)
        if unit.start:
            file.seek(unit.start - 1)
            if file.read(1) != b"\n":
                file.readline()
        else:
            file.seek(0)
        while file.tell() < unit.stop:
            line = file.readline()
            number += 1
            if line.strip():
                yield _parse(f"{name}:{number}", line, key)


def _lines_before(file: object, start: int) -> int:
    """Count the lines that start before byte `start`."""
    read, seek = file.read, file.seek  # type: ignore[attr-defined]
    seek(0)
    count, left, last = 0, start, b"\n"
    while left > 0 and (block := read(min(left, 8 << 20))):
        count += block.count(b"\n")
        left -= len(block)
        last = block[-1:]
    return count + (last != b"\n")


def _parse(where: str, line: bytes, key: str) -> Document:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        return Document(where, "", f"is not JSON: {error}")
    if not isinstance(row, dict):
        return Document(where, "", f"is a {type(row).__name__}, not an object")
    return _from_row(where, row.get(key), key, list(row))


def _read_row_group(unit: Unit, key: str) -> Iterator[Document]:
    import pyarrow.parquet as pq

    (name,) = unit.files
    file = pq.ParquetFile(name)
    if key not in file.schema_arrow.names:
        raise InputError(f"{name} has no column {key}; it has {', '.join(file.schema_arrow.names)}: choose one with --json-key")
    first = sum(file.metadata.row_group(group).num_rows for group in range(unit.start))
    column = file.read_row_group(unit.start, columns=[key]).column(0)
    for row, value in enumerate(column, start=first + 1):
        yield _from_row(f"{name}:{row}", value.as_py(), key, [key])


def _from_row(where: str, value: object, key: str, names: list[str]) -> Document:
    if isinstance(value, str):
        return Document(where, value)
    if key not in names:
        return Document(where, "", f"has no {key}; it has {', '.join(names) or 'nothing'}")
    return Document(where, "", f"has a {type(value).__name__} under {key}, not a text")
