"""Files of a checkpoint: written through to the disk, with a checksum of every item, and held against it when read.

An item is a stretch of a file that is read on its own: a tensor, or the whole of a small file. xxHash digests 10 GB/s, so
damage is found at no cost, before it can become garbage in a weight.
"""

import errno
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from primus.engine.checkpoint.archive import load_archive, save_archive
from primus.engine.checkpoint.folder import CHECKSUMS, TRACKER, write_durably
from primus.errors import RunError

__all__ = ["Checksums", "ItemFile", "Record", "damaged", "map_file", "save_object", "unpack", "unreadable"]


_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Record:
    """What was written into one file."""

    file: str
    """Name within the checkpoint folder."""
    size_bytes: int
    items: dict[str, str]
    """Checksum by the offset at which an item starts."""


class ItemFile:
    """A file under construction that takes items one after the other. An `OSError` names the file and ends the writing."""

    def __init__(self, path: Path) -> None:
        self._path, self._stream = path, path.open("wb", buffering=1 << 16)
        self._digest, self._items = xxhash.xxh3_64(), dict[str, str]()
        self._failure: OSError | None = None
        self.position = 0
        """Bytes so far."""

    def write(self, data: Any) -> int:
        """Append bytes to the present item."""
        view = memoryview(data)
        try:
            self._stream.write(view)
        except OSError as error:
            self._failure = OSError(error.errno, error.strerror, str(self._path))
            raise self._failure from error
        self._digest.update(view)
        self.position += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Nothing is due before `close`; torch.save calls this after every item."""

    @contextmanager
    def item(self) -> Iterator[int]:
        """Everything written in the body is one item; the body receives where it starts, aligned as torch aligns tensors."""
        self.write(bytes(-self.position % _ALIGNMENT))
        start, self._digest = self.position, xxhash.xxh3_64()
        try:
            yield start
        except RuntimeError as error:
            # torch.save hides the OSError of its stream behind one of its own.
            raise self._failure or error from error
        self._items[str(start)] = self._digest.hexdigest()

    def close(self) -> Record:
        """Bring everything to the disk."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        return Record(self._path.name, self.position, self._items)

    def abandon(self) -> None:
        """Close without a claim; a full disk fails here once more, which says nothing new."""
        try:
            self._stream.close()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise


def save_object(path: Path, value: Any) -> Record:
    """Write plain data and tensors by torch.save, as one item."""
    file = ItemFile(path)
    try:
        with file.item():
            save_archive(value, file)
        return file.close()
    except OSError:
        file.abandon()
        raise


@dataclass(frozen=True, slots=True)
class Checksums:
    """The records of a checkpoint; empty where the file is lost."""

    folder: Path
    records: Mapping[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Checksums":
        """Read a checkpoint's records; RunError if they are there and unreadable."""
        path = folder / CHECKSUMS
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))["files"]
            return cls(folder, {entry["file"]: Record(**entry) for entry in entries})
        except FileNotFoundError:
            return cls(folder)
        except OSError as error:
            raise damaged(path, f"it cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(path, f"it is not what was written ({error})") from error

    @staticmethod
    def write(folder: Path, records: Sequence[Record]) -> None:
        """Write the records of all ranks beside the files."""
        text = json.dumps({"algorithm": "xxh3_64", "files": [asdict(record) for record in records]})
        write_durably(folder / CHECKSUMS, text.encode())

    def require(self) -> None:
        """RunError if there are none: nothing would tell damaged weights from sound ones."""
        if not self.records:
            raise damaged(self.folder / CHECKSUMS, "it is missing or empty, so that the weights cannot be checked")

    def check_sizes(self) -> None:
        """RunError for a file that is missing or has lost or gained bytes; nothing is read."""
        for name, record in self.records.items():
            path = self.folder / name
            if not path.is_file():
                raise damaged(path, "it is missing")
            if path.stat().st_size != record.size_bytes:
                raise damaged(path, f"it has {path.stat().st_size:,d} bytes of the {record.size_bytes:,d} that were written")

    def check(self, name: str, offset: int, data: Any, what: str) -> None:
        """RunError if the item of a file that starts at `offset` is not what was written."""
        record = self.records.get(name)
        if record is not None and xxhash.xxh3_64_hexdigest(data) != record.items.get(str(offset)):
            raise damaged(self.folder / name, f"{what} is not what was written")

    def read_file(self, name: str) -> memoryview:
        """Return a whole file that is one item, checked."""
        data = map_file(self.folder / name)
        self.check(name, 0, data, "its content")
        return data


def map_file(path: Path) -> memoryview:
    """Return a file's bytes without reading them yet. Private: writing to them changes no file."""
    try:
        with path.open("rb") as stream:
            return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
    except OSError as error:
        raise damaged(path, f"it cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise damaged(path, "it is empty") from error


def unpack(data: memoryview, path: Path, what: str) -> Any:
    """Return what torch.save packed into `data`; RunError if it cannot be read."""
    try:
        return load_archive(data)
    except Exception as error:
        raise damaged(path, unreadable(what, error)) from error


def unreadable(what: str, error: Exception) -> str:
    """Return what to say of bytes that torch or pickle choked on; their messages run over many lines of advice."""
    reason = str(error).partition("\n")[0].partition(". ")[0]
    return f"{what} cannot be read ({type(error).__name__}: {reason})"


def damaged(path: Path, how: str) -> RunError:
    """Return the error for a file that must not be trained on."""
    older = f"ckpt_step loads an older checkpoint; under auto_continue_train, its number in {TRACKER}"
    return RunError(f"the checkpoint file {path} is damaged: {how}; {older}")
