"""A folder of safetensors, written tensor by tensor: what all files hold is decided first, so that nothing has to wait.

The format is a length, a header of names, dtypes, shapes and places, and the values one after the other.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import torch
from torch import Tensor

from primus.engine.checkpoint.files import ItemFile
from primus.engine.checkpoint.folder import write_durably
from primus.engine.checkpoint.hf.source import DTYPES

__all__ = ["Planned", "write_safetensors"]

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to come."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def write_safetensors(
    folder: Path,
    plan: Mapping[str, Planned],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    max_file_bytes: int,
    stem: str = "model",
) -> None:
    """Write the planned tensors, which come in the order of the plan; with an index if one file does not hold them."""
    files = _named(_cut(plan, max_file_bytes), stem)
    arriving = iter(tensors)
    for file, names in files.items():
        _write_file(folder / file, {name: plan[name] for name in names}, arriving)
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(planned.num_bytes for planned in plan.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        write_durably(folder / f"{stem}.safetensors.index.json", json.dumps(index, indent=2).encode())


def _write_file(path: Path, plan: Mapping[str, Planned], arriving: Iterator[tuple[str, Tensor]]) -> None:
    with _file(path) as file:
        file.write(_header(plan))
        for expected, planned in plan.items():
            name, value = next(arriving)
            assert (name, tuple(value.shape), value.dtype) == (expected, planned.shape, planned.dtype), "not as planned"
            file.write(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)


@contextmanager
def _file(path: Path) -> Iterator[ItemFile]:
    file = ItemFile(path)
    try:
        yield file
        file.close()
    except BaseException:
        file.abandon()
        raise


def _header(plan: Mapping[str, Planned]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    places = pairwise(accumulate((planned.num_bytes for planned in plan.values()), initial=0))
    for (name, planned), place in zip(plan.items(), places, strict=True):
        header[name] = {"dtype": _NAMES[planned.dtype], "shape": list(planned.shape), "data_offsets": list(place)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _cut(plan: Mapping[str, Planned], max_file_bytes: int) -> list[list[str]]:
    files: list[list[str]] = [[]]
    size = 0
    for name, planned in plan.items():
        if files[-1] and size + planned.num_bytes > max_file_bytes:
            files.append([])
            size = 0
        files[-1].append(name)
        size += planned.num_bytes
    return files


def _named(files: list[list[str]], stem: str) -> dict[str, list[str]]:
    count = len(files)
    if count == 1:
        return {f"{stem}.safetensors": files[0]}
    return {f"{stem}-{number:05d}-of-{count:05d}.safetensors": names for number, names in enumerate(files, 1)}
