"""`ckpt_format: torch_dist`: the files of `torch.distributed.checkpoint`, written from rectangles of global tensors.

`.metadata` names every rectangle and where it lies in `__RANK_K.distcp`; `torch.distributed.checkpoint` itself reads the
folder, and this module reads what it wrote. Planning is our own (`dist_plan`): torch's writer copies each view of a flat
buffer before writing it and its reader reads a stored rectangle once for every part that is wanted of it. Any layout
loads what any other saved, and tensors are filled in place.
"""

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from primus.engine.checkpoint.agree import everywhere, scatter
from primus.engine.checkpoint.archive import alone, map_archive, save_archive
from primus.engine.checkpoint.dist_plan import Box, Held, assign, holdings, overlaps, view
from primus.engine.checkpoint.files import Checksums, ItemFile, Record, damaged, map_file, unpack, unreadable
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError

__all__ = [
    "Piece",
    "Stored",
    "load_packed",
    "load_tensors",
    "read_metadata",
    "save_pieces",
    "save_tensors",
    "stored_tensors",
]

METADATA = ".metadata"
NUM_FILES = 2
"""Files of a rank, written by as many threads."""
PIECES_FILE_BYTES = 4 << 30
"""Pieces that are written one after the other begin another file beyond this."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor on disk."""

    global_shape: tuple[int, ...]
    dtype: torch.dtype


class Piece(NamedTuple):
    """A rectangle of a tensor, for a process that writes a checkpoint alone."""

    name: str
    box: Box
    data: Tensor


@dataclass(frozen=True, slots=True)
class _Written:
    """Where an item went."""

    name: str
    box: Box | None
    """None for bytes."""
    place: _StorageInfo


def save_tensors(
    folder: Path, tensors: Mapping[str, Shards], blobs: Mapping[str, bytes], *, mesh: Mesh, spread: bool
) -> list[Record]:
    """Write all ranks' rectangles and this rank's named bytes; return the records of all files on the first rank.

    `spread` shares replicated rectangles among their ranks, else the lowest one writes them. Every file is synced to disk.
    """
    held = everywhere(mesh.world, lambda: holdings(tensors))
    duty = scatter(assign(held, spread=spread) if held else [], mesh.world)
    results = everywhere(mesh.world, lambda: _write_rank(folder, mesh.rank, duty, tensors, blobs))
    records = [record for files, _ in results for record in files]
    if mesh.rank == 0:
        written = [item for _, items in results for item in items]
        records.append(_write_metadata(folder / METADATA, _metadata(held, written)))
    return records


def save_pieces(folder: Path, tensors: Mapping[str, Stored], pieces: Iterable[Piece]) -> list[Record]:
    """Write pieces that together are the tensors, each as soon as it comes, and return the records of the files."""
    records: list[Record] = []
    written: list[_Written] = []
    total = 0

    def file_of(piece: Piece) -> int:
        nonlocal total
        total += piece.data.nbytes
        return (total - piece.data.nbytes) // PIECES_FILE_BYTES

    for number, group in groupby(pieces, file_of):
        record, items = _write_file(folder / f"__0_{number}.distcp", group)
        records.append(record)
        written += items
    held = {name: Held(one.global_shape, one.dtype, ()) for name, one in tensors.items()}
    return [*records, _write_metadata(folder / METADATA, _metadata([held], written))]


def read_metadata(folder: Path, checksums: Checksums) -> Metadata:
    """Read the index of a checkpoint."""
    data = checksums.read_file(METADATA)
    try:
        metadata = pickle.loads(data)
    except Exception as error:
        raise damaged(folder / METADATA, unreadable("it", error)) from error
    assert isinstance(metadata, Metadata)
    return metadata


def stored_tensors(metadata: Metadata) -> dict[str, Stored]:
    """Return every tensor in a checkpoint."""
    entries = metadata.state_dict_metadata.items()
    return {n: Stored(tuple(e.size), e.properties.dtype) for n, e in entries if isinstance(e, TensorStorageMetadata)}


def load_tensors(folder: Path, tensors: Mapping[str, Shards], metadata: Metadata, checksums: Checksums) -> None:
    """Fill this rank's rectangles in place; every name must be in the checkpoint with its global shape."""
    by_file: dict[str, dict[int, _Source]] = {}
    for name, shards in tensors.items():
        _plan_reads(name, shards, metadata, by_file)
    with torch.no_grad():
        for file, sources in by_file.items():
            data = map_file(folder / file)
            for offset in sorted(sources):
                sources[offset].copy_from(data, folder / file, checksums)


def load_packed(folder: Path, name: str, metadata: Metadata, checksums: Checksums) -> Any:
    """Return what was packed into named bytes; None if the checkpoint has none of that name."""
    place: _StorageInfo | None = metadata.storage_data.get(MetadataIndex(name))
    if place is None:
        return None
    path = folder / place.relative_path
    data = map_file(path)[place.offset : place.offset + place.length]
    checksums.check(path.name, place.offset, data, name)
    return unpack(data, path, name)


def _write_rank(
    folder: Path, rank: int, duty: Sequence[tuple[str, int]], tensors: Mapping[str, Shards], blobs: Mapping[str, bytes]
) -> tuple[list[Record], list[_Written]]:
    items: list[tuple[str, Box | None, Tensor | bytes]] = [(name, None, data) for name, data in blobs.items()]
    for name, number in duty:
        chunk = tensors[name].chunks[number]
        items.append((name, Box(tuple(chunk.offsets), tuple(chunk.data.shape)), chunk.data))
    shares = _shares(items)
    paths = [folder / f"__{rank}_{number}.distcp" for number in range(len(shares))]
    with ThreadPoolExecutor(len(shares)) as pool:
        results = list(pool.map(_write_file, paths, shares))
    return [record for record, _ in results], [item for _, written in results for item in written]


def _shares(items: Sequence[tuple[str, Box | None, Tensor | bytes]]) -> list[list[tuple[str, Box | None, Tensor | bytes]]]:
    """Deal items to files of about equal size, largest first; no file is empty unless all are."""
    count = max(1, min(NUM_FILES, len(items)))
    shares: list[list[tuple[str, Box | None, Tensor | bytes]]] = [[] for _ in range(count)]
    loads = [0] * count
    for item in sorted(items, key=lambda item: -_num_bytes(item[2])):
        number = loads.index(min(loads))
        shares[number].append(item)
        loads[number] += _num_bytes(item[2]) + 1
    return shares


def _num_bytes(data: Tensor | bytes) -> int:
    return data.nbytes if isinstance(data, Tensor) else len(data)


def _write_file(path: Path, items: Iterable[tuple[str, Box | None, Tensor | bytes]]) -> tuple[Record, list[_Written]]:
    file, written = ItemFile(path), list[_Written]()
    try:
        for name, box, data in items:
            with file.item() as start:
                if isinstance(data, Tensor):
                    save_archive(alone(data), file)
                else:
                    file.write(data)
            written.append(_Written(name, box, _StorageInfo(path.name, start, file.position - start)))
        return file.close(), written
    except BaseException:
        file.abandon()
        raise


def _metadata(ranks: Sequence[Mapping[str, Held]], written: Sequence[_Written]) -> Metadata:
    entries: dict[str, Any] = {}
    for held in ranks:
        for name, one in held.items():
            entries.setdefault(name, TensorStorageMetadata(TensorProperties(one.dtype), torch.Size(one.global_shape), []))
    places: dict[MetadataIndex, _StorageInfo] = {}
    for item in written:
        if item.box is None:
            entries[item.name] = BytesStorageMetadata()
            places[MetadataIndex(item.name)] = item.place
            continue
        chunks = entries[item.name].chunks
        places[MetadataIndex(item.name, item.box.offsets, len(chunks))] = item.place
        chunks.append(ChunkStorageMetadata(torch.Size(item.box.offsets), torch.Size(item.box.sizes)))
    assert len(places) == len(written), "two rectangles of a tensor start at one place"
    paths = {name: (name,) for name in entries}
    return Metadata(entries, planner_data=paths, storage_data=places, version=CURRENT_DCP_VERSION)


def _write_metadata(path: Path, metadata: Metadata) -> Record:
    file = ItemFile(path)
    try:
        with file.item():
            file.write(pickle.dumps(metadata))
        return file.close()
    except OSError:
        file.abandon()
        raise


@dataclass(frozen=True, slots=True)
class _Source:
    """A stored rectangle and everything that is wanted of it: it is read once."""

    name: str
    box: Box
    dtype: torch.dtype
    place: _StorageInfo
    wanted: list[tuple[Box, Tensor]]

    def copy_from(self, file: memoryview, path: Path, checksums: Checksums) -> None:
        """Check the stored bytes, and copy each part to where it is wanted."""
        data = file[self.place.offset : self.place.offset + self.place.length]
        checksums.check(path.name, self.place.offset, data, self.name)
        is_ours = path.name in checksums.records
        tensor = map_archive(data, self.dtype, self.box.sizes) if is_ours else unpack(data, path, self.name)
        if tuple(tensor.shape) != self.box.sizes:
            raise damaged(path, f"{self.name} has shape {list(tensor.shape)} instead of {list(self.box.sizes)}")
        for part, target in self.wanted:
            target.copy_(view(tensor, self.box, part))


def _plan_reads(name: str, shards: Shards, metadata: Metadata, by_file: dict[str, dict[int, _Source]]) -> None:
    stored = metadata.state_dict_metadata[name]
    assert isinstance(stored, TensorStorageMetadata)
    boxes = [Box(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in stored.chunks]
    for chunk in shards.chunks:
        box, covered = Box(tuple(chunk.offsets), tuple(chunk.data.shape)), 0
        for number, shared in overlaps(box, boxes):
            place: _StorageInfo = metadata.storage_data[MetadataIndex(name, boxes[number].offsets, number)]
            source = by_file.setdefault(place.relative_path, {}).setdefault(
                place.offset, _Source(name, boxes[number], stored.properties.dtype, place, [])
            )
            source.wanted.append((shared, view(chunk.data, box, shared)))
            covered += shared.numel
        if covered < math.prod(chunk.data.shape):
            raise InputError(f"the checkpoint holds only {covered:,d} of {box.numel:,d} wanted elements of {name}")
