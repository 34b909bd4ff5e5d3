"""Tensors as torch.save's archives, written and read without copies beside the necessary one.

torch.save writes whole storages, so a rectangle of a long flat buffer is given a storage of its own that shares the memory.
torch.load would allocate and fill fresh memory, which costs more than the reading itself; an archive of ours holds one
contiguous tensor, whose bytes can be used where the file is mapped.
"""

import io
import struct
import zipfile
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.serialization import config as serialization

__all__ = ["alone", "load_archive", "map_archive", "save_archive"]

_LOCAL_HEADER = struct.Struct("<26xHH")


def save_archive(value: object, stream: object) -> None:
    """Write `value` as torch.save does, but for the zip checksum: files have better ones, and torch.load never reads it."""
    with serialization.patch({"save.compute_crc32": False}):  # type: ignore[attr-defined]
        torch.save(value, stream)  # type: ignore[arg-type]


def load_archive(data: memoryview) -> object:
    """Return whatever plain data and tensors an archive holds."""
    return torch.load(_Window(data), map_location="cpu", weights_only=True)  # type: ignore[arg-type]


def map_archive(data: memoryview, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the contiguous tensor that is all an archive holds, as a view of its bytes; ValueError if they are not as many."""
    with zipfile.ZipFile(_Window(data)) as archive:
        (entry,) = [entry for entry in archive.infolist() if entry.filename.endswith("/data/0")]
    name_length, extra_length = _LOCAL_HEADER.unpack_from(data, entry.header_offset)
    start = entry.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    raw = torch.frombuffer(data[start : start + entry.file_size], dtype=torch.uint8)
    if raw.numel() != torch.Size(shape).numel() * dtype.itemsize:
        raise ValueError(f"{raw.numel()} bytes are no {dtype} tensor of shape {list(shape)}")
    return raw.view(dtype).view(torch.Size(shape))


def alone(data: Tensor) -> Tensor:
    """Return the values as a contiguous CPU tensor whose storage holds nothing else, sharing the memory where it can be."""
    data = data.detach().cpu().contiguous()
    if data.untyped_storage().nbytes() == data.nbytes:
        return data
    raw = data.reshape(-1).view(torch.uint8).numpy()
    return torch.frombuffer(raw, dtype=data.dtype).view(data.shape)


class _Window(io.RawIOBase):
    """Bytes in memory as a file to read."""

    def __init__(self, data: memoryview) -> None:
        super().__init__()
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = self._data[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)
