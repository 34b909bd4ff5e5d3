"""Packs as files that other programs read too: parquet with a row a pack. `write_packs` and `read_packs` are the names to use.

Columns are those of Megatron Bridge: `input_ids`, the tokens of samples one behind the other; `loss_mask`, 1 where the next
token is learnt; `seq_start_id`, where samples begin. What decided them is noted in the file, so that a run can tell whether
they are its own. Numpy files that Bridge wrote before are read too, without executing what a pickle may ask for.
"""

import json
import os
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.cache import cached_arrays
from primus.engine.data.sft.packing import Packs
from primus.engine.data.sft.rows import file_state
from primus.engine.data.sft.tokens import CACHE_KEY, NAMES, Chunk, Tokens, joined
from primus.errors import InputError

__all__ = ["check_metadata", "made_with", "packed_files", "read_packs", "write_packs"]

_NOTE = b"primus"
"""Where a file says what decided its packs."""
_COLUMNS = ("input_ids", "loss_mask", "seq_start_id")
_GROUP = 256
"""Packs that are written, and read, at once."""

_Pack = tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int64]]
"""Tokens of a pack, whether the next one of each is learnt, and where samples begin."""


def write_packs(file: Path, tokens: Tokens, packs: Packs, note: Mapping[str, Any]) -> None:
    """Write packs; the file appears when it is whole."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = (pa.int32(), pa.int8(), pa.int32())
    schema = pa.schema([(name, pa.list_(kind)) for name, kind in zip(_COLUMNS, kinds, strict=True)])
    schema = schema.with_metadata({_NOTE: json.dumps(note, sort_keys=True).encode()})
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("wb") as stream:
            with parquet.ParquetWriter(stream, schema) as writer:
                for start in range(0, len(packs), _GROUP):
                    group = [_columns(tokens, packs[number]) for number in range(start, min(start + _GROUP, len(packs)))]
                    writer.write_table(pa.table(list(map(list, zip(*group, strict=True))), schema=schema))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _columns(tokens: Tokens, numbers: Iterable[int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    samples = [tokens[number] for number in numbers]
    starts = np.cumsum([0, *(len(sample.ids) for sample in samples[:-1])])
    mask = np.concatenate([[*sample.trained[1:], False] for sample in samples])
    return np.concatenate([sample.ids for sample in samples]).astype(np.int32), mask.astype(np.int8), starts.astype(np.int32)


def packed_files(spec: str) -> list[Path]:
    """Return the files that a file, a folder or a pattern names, in order; InputError if there are none."""
    place = Path(spec)
    found = sorted(place.glob("*.parquet")) if place.is_dir() else sorted(place.parent.glob(place.name))
    if place.is_file():
        found = [place]
    if not found:
        raise InputError("no file of packed samples is there; `primus data prepare --sft` writes them")
    wrong = next((file for file in found if file.suffix not in (".parquet", ".npy")), None)
    if wrong is not None:
        raise InputError(f"{wrong} is no file of packed samples: those end in .parquet or .npy")
    return found


def made_with(files: Iterable[Path]) -> Mapping[str, Any] | None:
    """Return what decided the packs of files; None if one does not say. InputError if one cannot be read."""
    notes = [_note(file) for file in files]
    differing = next((note for note in notes if note != notes[0]), None)
    return None if differing is not None else notes[0]


def _note(file: Path) -> Mapping[str, Any] | None:
    if file.suffix == ".npy":
        return None
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(file).metadata or {}
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    note: Mapping[str, Any] | None = json.loads(metadata[_NOTE]) if _NOTE in metadata else None
    return note


def check_metadata(file: Path, size: int) -> None:
    """Raise InputError if what was said of packs, an entry a split, cannot be read or tells of packs of another size."""
    try:
        text = file.read_text(encoding="utf-8")
        read = [json.loads(line) for line in text.splitlines() if line.strip()]
        entries = read[0] if read and isinstance(read[0], list) else read
        sizes = {int(entry["pack_size"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"packed_metadata_path {file} cannot be read: {error!r}") from error
    if sizes != {size}:
        told = ", ".join(map(str, sorted(sizes))) or "none"
        raise InputError(f"packed_metadata_path {file} tells of packs of {told} tokens, and a sequence has {size}")


def read_packs(files: Iterable[Path], folder: Path) -> tuple[Tokens, Packs]:
    """Return the packs of files, as arrays that are kept in `folder`; InputError if one is none of packed samples."""
    files = list(files)
    names = (*NAMES, "packs")

    def build() -> list[NDArray[Any]]:
        counts: list[int] = [0]
        arrays = joined(_chunks(files, counts), folder)
        return [*arrays, np.cumsum(counts, dtype=np.int64)]

    description = {"packed": [file_state(file) for file in files]}
    *arrays, bounds = cached_arrays(folder, "packed", description, names, build, key=CACHE_KEY)
    return Tokens(*arrays), Packs(np.arange(bounds[-1]), bounds)


def _chunks(files: Iterable[Path], counts: list[int]) -> Iterator[Chunk]:
    """Yield the samples of each pack, and note how many they are."""
    for file in files:
        for number, (ids, learnt, starts) in enumerate(_packs(file)):
            bounds = np.append(starts, len(ids))
            if len(ids) != len(learnt) or len(starts) == 0 or starts[0] != 0 or (np.diff(bounds) < 2).any():
                raise InputError(f"{file}, pack {number} is damaged: its three columns contradict one another")
            counts.append(len(starts))
            # The first of a sample is no label, whatever is said of the token before it.
            yield ids, np.concatenate([[False], learnt[:-1]]), np.diff(bounds), np.zeros(len(starts), np.int32)


def _packs(file: Path) -> Iterator[_Pack]:
    for row in _of_numpy(file) if file.suffix == ".npy" else _of_parquet(file):
        try:
            ids, mask, starts = (np.asarray(row[name]) for name in _COLUMNS)
        except (KeyError, TypeError) as error:
            raise InputError(f"{file} is no file of packed samples: it lacks one of {', '.join(_COLUMNS)}") from error
        yield ids.astype(np.int32), mask.astype(np.bool_), starts.astype(np.int64)


def _of_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_GROUP, columns=[name for name in _COLUMNS if name in opened.schema_arrow.names]):
                columns = {name: batch.column(name) for name in batch.schema.names}
                for number in range(batch.num_rows):
                    yield {name: column[number].values.to_numpy() for name, column in columns.items()}
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _of_numpy(file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with file.open("rb") as stream:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            read(stream)
            rows = _Plain(stream).load()
    except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    yield from rows.tolist()


class _Plain(pickle.Unpickler):
    """Loads arrays and plain values; a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no array")
