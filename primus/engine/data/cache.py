"""Arrays kept on disk under a hash of what they were built from: built once, memory-mapped by every process. No torch.

A file appears under its name only when it is complete (temporary name, then rename), so processes that build the same
array at the same time, on one machine or several, do no harm: each renames equal bytes.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus.errors import InputError

__all__ = ["cached_arrays", "description_hash"]

Array = NDArray[Any]


def description_hash(description: Mapping[str, Any]) -> str:
    """Return the name under which arrays of this description are kept."""
    return hashlib.md5(_text(description).encode(), usedforsecurity=False).hexdigest()


def cached_arrays(
    folder: Path | None, kind: str, description: Mapping[str, Any], names: Sequence[str], build: Callable[[], Sequence[Array]]
) -> list[Array]:
    """Return the arrays `names`, from `folder` if it holds them all, else from `build`, keeping them there.

    Files are `<hash>-<kind>-<name>.npy` and `<hash>-<kind>-description.txt`. Without a folder nothing is kept.
    """
    if folder is None:
        return list(build())
    stem = f"{description_hash(description)}-{kind}"
    files = [folder / f"{stem}-{name}.npy" for name in names]
    if not all(file.exists() for file in files):
        arrays = build()
        try:
            _keep(folder, files, arrays)
            (folder / f"{stem}-description.txt").write_text(_text(description), encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"the index cache folder {folder} cannot be written: {error}; set data_cache_path to a folder that can"
            ) from error
    return [np.load(file, mmap_mode="r") for file in files]


def _keep(folder: Path, files: Sequence[Path], arrays: Sequence[Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, array in zip(files, arrays, strict=True):
        temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex}.npy")
        try:
            np.save(temporary, array)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def _text(description: Mapping[str, Any]) -> str:
    return json.dumps(description, indent=4, default=str, sort_keys=True)
