"""Arrays kept on disk under a hash of what they were built from: built once, memory-mapped by every process. No torch.

A file appears under its name only when it is complete and on the disk, so processes that build the same array at the same
time, on one machine or several, do no harm: each renames equal bytes. It ends with a checksum, which numpy passes over: a file
that was damaged afterwards is built anew, for an index with a wrong byte would train on other tokens or read out of bounds.
"""

import errno
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from primus.errors import InputError, RunError

__all__ = ["cached_arrays", "description_hash", "held_arrays"]

log = logging.getLogger(__name__)

Array = NDArray[Any]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_CHECKSUM = 8
"""Bytes."""


def description_hash(description: Mapping[str, Any]) -> str:
    """Return the name under which arrays of this description are kept."""
    return hashlib.md5(_text(description).encode(), usedforsecurity=False).hexdigest()


def cached_arrays(
    folder: Path | None,
    kind: str,
    description: Mapping[str, Any],
    names: Sequence[str],
    build: Callable[[], Sequence[Array]],
    *,
    key: str = "data_cache_path",
) -> list[Array]:
    """Return the arrays `names`, from `folder` if it holds them all, else from `build`, keeping them there.

    Files are `<hash>-<kind>-<name>.npy` and `<hash>-<kind>-description.txt`. Without a folder nothing is kept. `key` is what
    an error says to set.
    """
    if folder is None:
        return list(build())
    stem = f"{description_hash(description)}-{kind}"
    files = [folder / f"{stem}-{name}.npy" for name in names]
    try:
        sound = [_is_sound(file) for file in files]
        if not all(sound):
            _keep(folder, files, build())
            (folder / f"{stem}-description.txt").write_text(_text(description), encoding="utf-8")
        return [np.load(file, mmap_mode="r") for file in files]
    except OSError as error:
        refusal = RunError if error.errno in _FULL else InputError
        raise refusal(f"the index cache folder {folder} cannot be used: {error}; set {key} to a folder that can") from error


def held_arrays(folder: Path, kind: str, description: Mapping[str, Any], names: Sequence[str]) -> list[Array] | None:
    """Return what `cached_arrays` would find; None if it would build."""
    files = [folder / f"{description_hash(description)}-{kind}-{name}.npy" for name in names]
    return [np.load(file, mmap_mode="r") for file in files] if all(map(_is_sound, files)) else None


def _is_sound(file: Path) -> bool:
    """Tell whether a file is there and as it was written; a damaged one is worth a warning."""
    if not file.exists():
        return False
    data = np.memmap(file, np.uint8, mode="r") if file.stat().st_size > _CHECKSUM else np.empty(0, np.uint8)
    sound = _checksum(data[:-_CHECKSUM]) == data[-_CHECKSUM:].tobytes()
    if not sound:
        log.warning("index cache file %s is damaged, or of an earlier version: it is built anew", file)
    return sound


def _checksum(data: Array) -> bytes:
    return xxhash.xxh3_64_digest(np.ascontiguousarray(data).data)


def _keep(folder: Path, files: Sequence[Path], arrays: Sequence[Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(files, arrays, strict=True):
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.npy")
        try:
            np.save(temporary, array)
            with temporary.open("ab") as written:
                written.write(_checksum(np.memmap(temporary, np.uint8, mode="r")))
                written.flush()
                os.fsync(written.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def _text(description: Mapping[str, Any]) -> str:
    return json.dumps(description, indent=4, default=str, sort_keys=True)
