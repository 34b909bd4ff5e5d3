"""Which files of a folder hold which tensors, as far as text tells it. No torch."""

import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path

from primus.errors import InputError

__all__ = ["files_of", "holds_layer", "tensor_names"]

_ONE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def files_of(folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Return the files that hold tensors, and which of them an index expects each tensor in."""
    index = folder / _INDEX
    if not index.is_file():
        if (folder / _ONE).is_file():
            return [_ONE], {}
        raise InputError(f"{folder} holds neither {_ONE} nor {_INDEX}; save weights of another format as safetensors first")
    try:
        indexed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in indexed.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index} is no index of safetensors: {type(error).__name__} {error}") from error
    missing = [file for file in files if Path(file).name != file or not (folder / file).is_file()]
    if missing:
        raise InputError([f"{index} names the file {file}, which is not in the folder" for file in missing])
    return files, indexed


def holds_layer(folder: Path, number: int) -> bool:
    """Tell whether the weights of a layer are there; InputError as for the whole folder."""
    return any(name.startswith(f"model.layers.{number}.") for name in tensor_names(folder))


def tensor_names(folder: Path) -> Collection[str]:
    """Return the names of all tensors; none of a damaged file. InputError as `files_of`."""
    files, indexed = files_of(folder)
    return indexed or _names(folder / files[0])


def _names(file: Path) -> Collection[str]:
    """Return the names in the header of a file; none of a file that is damaged, which its reader says."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, file.stat().st_size)))
    except (OSError, ValueError, struct.error):
        return ()
    return header if isinstance(header, dict) else ()
