"""Which files of a folder hold which tensors, as far as text tells it. No torch."""

import json
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from primus.errors import InputError

__all__ = ["damages", "files_of", "holds_layer", "tensor_names"]

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


def damages(folder: Path) -> Iterator[str]:
    """Say which files are cut short or hold other tensors than the index says; errors as `files_of`. Only headers are read."""
    files, indexed = files_of(folder)
    held: dict[str, Collection[str]] = {}
    for name in files:
        file = folder / name
        try:
            header, size = _header(file)
        except (OSError, ValueError, struct.error) as error:
            yield f"{file} is damaged or no safetensors file: {error}"
            continue
        if size != file.stat().st_size:
            yield f"{file} is damaged: it has {file.stat().st_size:,d} bytes, and its header tells of {size:,d}; fetch it again"
        held[name] = header
    for tensor, name in indexed.items():
        if name in held and tensor not in held[name]:
            yield f"{folder}: the index says that {name} holds {tensor}, and it does not"
            return


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
        return _header(file)[0]
    except (OSError, ValueError, struct.error):
        return ()


def _header(file: Path) -> tuple[Mapping[str, Any], int]:
    """Return what a file says of each tensor, and how many bytes it has by that; ValueError if it says nothing."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(length, file.stat().st_size)))
    if not isinstance(header, dict) or not all(isinstance(each, dict) for each in header.values()):
        raise ValueError("its header is no map of tensors")
    tensors = {name: each for name, each in header.items() if name != "__metadata__"}
    try:
        return tensors, 8 + length + max((int(each["data_offsets"][1]) for each in tensors.values()), default=0)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"its header lacks {error}") from error
