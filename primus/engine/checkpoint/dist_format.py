"""`ckpt_format: torch_dist`: `torch.distributed.checkpoint` files, planned from rectangles of global tensors.

A rank says which rectangles it holds (`Shards`); equal rectangles of several ranks are written by one of them. Loading
intersects the rectangles a rank wants with those on disk, so any layout reads any other. Tensors are filled in place.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from primus.engine.checkpoint.checksum import ChecksumFileSystem
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Chunk, Shards

__all__ = ["load_tensors", "save_tensors", "stored_shapes"]


def save_tensors(folder: Path, tensors: Mapping[str, Shards], *, mesh: Mesh, parallel: bool) -> dict[str, str]:
    """Write all ranks' rectangles; return the checksum of each file this rank wrote.

    `parallel` spreads replicated rectangles over their ranks, else the lowest one writes them. Every file is synced to disk.
    """
    writer = FileSystemWriter(folder, overwrite=True)
    files = ChecksumFileSystem()
    writer.fs = files
    planner = _SavePlanner(dedup_save_to_lowest_rank=not parallel)
    save(dict(tensors), storage_writer=writer, planner=planner, no_dist=mesh.world.size == 1)
    return files.checksums


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the global shape of every tensor in a checkpoint."""
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    return {name: tuple(entry.size) for name, entry in entries.items() if not isinstance(entry, BytesStorageMetadata)}


def load_tensors(folder: Path, tensors: Mapping[str, Shards], *, mesh: Mesh) -> None:
    """Fill the rectangles in place; every name must be in the checkpoint with its global shape."""
    load(dict(tensors), storage_reader=FileSystemReader(folder), planner=_LoadPlanner(), no_dist=mesh.world.size == 1)


class _SavePlanner(DefaultSavePlanner):
    """Plans `Shards` instead of tensors."""

    def create_local_plan(self) -> SavePlan:
        items = [_write_item(name, s, chunk) for name, s in self.state_dict.items() for chunk in s.chunks]
        self._chunks = {
            MetadataIndex(name, torch.Size(chunk.offsets)): chunk.data
            for name, s in self.state_dict.items()
            for chunk in s.chunks
        }
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        index = dataclasses.replace(write_item.index, index=None)
        return self._chunks[index].detach().cpu()


class _LoadPlanner(DefaultLoadPlanner):
    """Reads into the rectangles of `Shards`."""

    def set_up_planner(self, state_dict: dict[str, Any], metadata: Any = None, is_coordinator: bool = False) -> None:
        self._wanted: dict[str, Shards] = state_dict
        super().set_up_planner({}, metadata, is_coordinator)

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, shards in self._wanted.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, stored, [_geometry(chunk) for chunk in shards.chunks])
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        number = read_item.dest_index.index
        assert number is not None
        target = self._wanted[read_item.dest_index.fqn].chunks[number].data.detach()
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dim, start, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """The tensor is the target itself."""


def _geometry(chunk: Chunk) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.data.shape))


def _write_item(name: str, shards: Shards, chunk: Chunk) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(name, torch.Size(chunk.offsets)),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_geometry(chunk),
            properties=TensorProperties(dtype=shards.dtype),
            size=torch.Size(shards.global_shape),
        ),
    )
