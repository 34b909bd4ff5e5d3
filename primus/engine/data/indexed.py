"""Megatron's indexed token files: `PREFIX.bin` holds the tokens of all sequences back to back, `PREFIX.idx` their index.

The index, little-endian: magic, u64 version 1, u8 dtype code, u64 sequences, u64 entries of the document array, i32
lengths in tokens, i64 byte offsets, i64 document boundaries (first 0, last the number of sequences). No torch.

A sequence is what sampling, splits and shuffles call a document; the document array, which may hold several sequences
together (text that was cut into sentences), is kept in the file and read by nobody here, as in Megatron-Core.
"""

import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.index_check import check_index
from primus.errors import InputError, RunError

__all__ = ["IndexedDataset", "IndexedDatasetBuilder", "best_dtype", "merge"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
_FLOATS = (6, 7)
_PIECE = 16 << 20
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


def best_dtype(vocab_size: int) -> np.dtype[np.generic]:
    """Return the smallest dtype that holds every id below `vocab_size`: uint16 up to 65,536 ids, int32 above.

    Megatron's own tool goes over to int32 at 65,500 already; both read either.
    """
    return np.dtype(np.uint16) if vocab_size <= 65_536 else np.dtype(np.int32)


class IndexedDataset:
    """Sequences of a prefix, memory-mapped, or read one by one with `mmap=False`."""

    def __init__(self, prefix: str | Path, *, mmap: bool = True) -> None:
        """Open a prefix; InputError if a file is missing, foreign, unreadable or not what its index says."""
        self.prefix, self._mmap = str(prefix), mmap
        index, self._bin = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        try:
            for file in (index, self._bin):
                if not file.is_file():
                    raise InputError(_missing(self.prefix, file))
            self.dtype, self.sequence_lengths, self._offsets, self.document_indices, size = _read_index(index)
            self._check_size(size)
        except OSError as error:
            raise InputError(f"dataset {prefix}: {error.filename} cannot be read: {error.strerror}") from error
        self._num_tokens = size // self.dtype.itemsize
        self._tokens: NDArray[np.generic] | None = None

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.sequence_lengths)

    def __getitem__(self, sequence: int) -> NDArray[np.generic]:
        """Return the tokens of a sequence."""
        return self.get(sequence)

    def get(self, sequence: int, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Return the tokens [start, stop) of a sequence; a view of the mapped file where there is one."""
        stop = int(self.sequence_lengths[sequence]) if stop is None else stop
        first = int(self._offsets[sequence]) // self.dtype.itemsize + start
        if self._mmap:
            return self._mapped()[first : first + stop - start]
        return np.fromfile(self._bin, self.dtype, count=stop - start, offset=first * self.dtype.itemsize)

    def head(self, count: int) -> NDArray[np.generic]:
        """Return the first tokens of the file, at most `count`."""
        return np.fromfile(self._bin, self.dtype, count=min(count, self._num_tokens))

    def __reduce__(self) -> "tuple[partial[IndexedDataset], tuple[str]]":
        """Travel as a name: another process maps the files itself."""
        return partial(IndexedDataset, mmap=self._mmap), (self.prefix,)

    def _mapped(self) -> NDArray[np.generic]:
        if self._tokens is None:
            # What follows the last sequence is nobody's, and need not be whole tokens. Nothing cannot be mapped.
            shape = (self._num_tokens,)
            self._tokens = (
                np.memmap(self._bin, self.dtype, mode="r", shape=shape) if self._num_tokens else np.empty(0, self.dtype)
            )
        return self._tokens

    def _check_size(self, needed: int) -> None:
        with self._bin.open("rb") as file:
            found = file.seek(0, os.SEEK_END)
        if found < needed:
            raise InputError(
                f"dataset {self.prefix}: {self._bin} is truncated: the index asks for {needed:,d} bytes, "
                f"the file has {found:,d}; prepare it again"
            )


def _missing(prefix: str, file: Path) -> str:
    stem = Path(prefix).with_suffix("")
    if Path(prefix).suffix in (".bin", ".idx") and Path(f"{stem}.idx").is_file():
        return f"dataset {prefix}: a dataset is named by its prefix, without .bin or .idx; use {stem}"
    return f"dataset {prefix}: {file} does not exist; a dataset is a prefix with a .bin and an .idx file"


def _read_index(file: Path) -> tuple[np.dtype[np.generic], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], int]:
    """Return dtype, lengths, offsets, documents, and the bytes of all sequences."""
    # Mapped, so that the ranks and loader processes of a machine share one copy of a large index.
    data = np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.empty(0, np.uint8)
    if len(data) < _HEADER.size or data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise InputError(f"{file} is not an index of tokens (its first bytes are not {_MAGIC!r})")
    _, version, code, sequences, entries = _HEADER.unpack(data[: _HEADER.size].tobytes())
    needed = _HEADER.size + 12 * sequences + 8 * entries
    if version != 1 or code not in _DTYPES:
        raise InputError(
            f"{file}: version {version} with dtype code {code} is unknown; version 1 and codes 1 to 5 and 8 are read"
        )
    if code in _FLOATS:
        raise InputError(
            f"{file}: its .bin holds {np.dtype(_DTYPES[code])} numbers, not the ids of tokens; prepare the text again"
        )
    if len(data) < needed:
        raise InputError(f"{file} is truncated: {len(data):,d} bytes instead of {needed:,d}; prepare the dataset again")
    at = _HEADER.size
    lengths = np.frombuffer(data, np.int32, sequences, at)
    offsets = np.frombuffer(data, np.int64, sequences, at + 4 * sequences)
    documents = np.frombuffer(data, np.int64, entries, at + 12 * sequences)
    dtype = np.dtype(_DTYPES[code])
    return dtype, lengths, offsets, documents, check_index(file, lengths, offsets, documents, dtype.itemsize)


class IndexedDatasetBuilder:
    """Writes a prefix: add documents, and `finish`; as a context manager it finishes unless an error left it.

    Nothing stands under the prefix before it is whole, and what stood there before is replaced at the end.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype[np.generic]) -> None:
        """Start a dataset of `dtype`; its folder is created if need be."""
        self.prefix, self.dtype = Path(prefix), np.dtype(dtype)
        self.prefix.parent.mkdir(parents=True, exist_ok=True)
        self._draft = Path(f"{prefix}.bin.tmp")
        self._bin = self._draft.open("wb")
        self._lengths: list[int] = []
        self._documents = [0]

    def __enter__(self) -> "IndexedDatasetBuilder":
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self._discard()

    def add_document(self, tokens: Sequence[int] | NDArray[np.integer], lengths: Sequence[int] | None = None) -> None:
        """Append one document; `lengths` divides it into sequences (default: it is one)."""
        ids = np.asarray(tokens)
        narrow = ids.astype(self.dtype)
        if not np.array_equal(narrow, ids):
            raise InputError(f"dataset {self.prefix} holds {self.dtype}; ids from {ids.min()} to {ids.max()} do not fit")
        self._bin.write(narrow.tobytes())
        self._lengths += [len(tokens)] if lengths is None else lengths
        self._documents.append(len(self._lengths))

    def add_prefix(self, prefix: str | Path) -> None:
        """Append a whole dataset of the same dtype."""
        other = IndexedDataset(prefix)
        if other.dtype != self.dtype:
            raise InputError(f"dataset {prefix} holds {other.dtype}, {self.prefix} holds {self.dtype}; they cannot be merged")
        first = len(self._lengths)
        self._lengths += other.sequence_lengths.tolist()
        self._documents += (other.document_indices[1:] + first).tolist()
        self._copy(Path(f"{prefix}.bin"), other.sequence_lengths)

    def add_tokens(self, file: Path, lengths: NDArray[np.int32]) -> None:
        """Append documents of one sequence each, whose tokens stand back to back in `file`."""
        first = len(self._lengths)
        self._lengths += lengths.tolist()
        self._documents += range(first + 1, first + len(lengths) + 1)
        self._copy(file, lengths)

    def finish(self) -> None:
        """Make the tokens durable, then let them and the index appear."""
        self._bin.flush()
        os.fsync(self._bin.fileno())
        self._bin.close()
        index, draft = Path(f"{self.prefix}.idx"), Path(f"{self.prefix}.idx.tmp")
        self._write_index(draft)
        # The old index goes first: never does one describe the other's tokens.
        index.unlink(missing_ok=True)
        self._draft.replace(f"{self.prefix}.bin")
        draft.replace(index)

    def _discard(self) -> None:
        """Leave nothing that is not whole."""
        # On a full disk closing fails as well, for it writes what is left; the file is closed all the same.
        with suppress(OSError):
            self._bin.close()
        for draft in (self._draft, Path(f"{self.prefix}.idx.tmp")):
            draft.unlink(missing_ok=True)

    def _write_index(self, file: Path) -> None:
        lengths = np.asarray(self._lengths, np.int32)
        sizes = lengths.astype(np.int64) * self.dtype.itemsize
        with file.open("wb") as index:
            index.write(_HEADER.pack(_MAGIC, 1, _CODES[self.dtype], len(lengths), len(self._documents)))
            for array in (lengths, np.cumsum(sizes) - sizes, np.asarray(self._documents, np.int64)):
                index.write(array.tobytes())
            index.flush()
            os.fsync(index.fileno())

    def _copy(self, file: Path, lengths: NDArray[np.int32]) -> None:
        """Append the tokens of these lengths; a file may hold more, which would move all that follows."""
        left = int(lengths.sum(dtype=np.int64)) * self.dtype.itemsize
        with file.open("rb") as source:
            while left and (piece := source.read(min(left, _PIECE))):
                left -= self._bin.write(piece)
        if left:
            raise RunError(f"{file} has {left:,d} bytes fewer than its index says: it was changed while it was copied")


def merge(prefixes: Iterable[str | Path], output_prefix: str | Path, *, overwrite: bool = False) -> None:
    """Write the documents of several datasets of one dtype, in this order, as one dataset."""
    existing = [suffix for suffix in (".bin", ".idx") if Path(f"{output_prefix}{suffix}").exists()]
    if existing and not overwrite:
        raise InputError(f"{output_prefix}{existing[0]} exists already; choose another output prefix, or allow to overwrite it")
    first, *others = prefixes
    with IndexedDatasetBuilder(output_prefix, IndexedDataset(first).dtype) as builder:
        for prefix in (first, *others):
            builder.add_prefix(prefix)
