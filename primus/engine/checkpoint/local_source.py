"""`LocalSource`: a local checkpoint as a run reads it: each part on one rank, each rectangle passed on to whom it belongs."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint import local_folder
from primus.engine.checkpoint.dist_plan import Box, overlaps, view
from primus.engine.checkpoint.files import Checksums, damaged, unpack
from primus.engine.checkpoint.local_folder import part_file
from primus.engine.checkpoint.replicas import receive, send
from primus.engine.checkpoint.start import Start
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError, RunError

__all__ = ["LocalSource"]

log = logging.getLogger(__name__)

Item = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A rectangle: its tensor's name, offsets and sizes."""


class LocalSource:
    """A local checkpoint that this rank's rectangles were taken from, already in memory."""

    is_shared = False

    def __init__(self, start: Start, mesh: Mesh) -> None:
        parts = _provided(start.folder.parent.parent, start.folder.name, mesh)
        main, self._stored = _exchanged(parts, mesh)
        self.common: Mapping[str, Any] = main["common"]
        self._shapes, self._rng, self._folder = main["shapes"], main["rng"], start.folder

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the global shape of every tensor that the rank held."""
        return dict(self._shapes)

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the dtype of every tensor."""
        return {name: next(iter(stored.values())).dtype for name, stored in self._stored.items()}

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill rectangles in place."""
        with torch.no_grad():
            for name, shards in tensors.items():
                stored = self._stored.get(name, {})
                boxes = list(stored)
                for chunk in shards.chunks:
                    wanted, covered = Box(tuple(chunk.offsets), tuple(chunk.data.shape)), 0
                    for number, shared in overlaps(wanted, boxes):
                        box = boxes[number]
                        view(chunk.data, wanted, shared).copy_(view(stored[box], box, shared))
                        covered += shared.numel
                    if covered < wanted.numel:
                        raise InputError(
                            f"the local checkpoint {self._folder.name} holds {covered:,d} of the {wanted.numel:,d} elements of "
                            f"{name} that this rank asks for: it fits the settings it was saved with; keep them, or remove it"
                        )

    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None:
        """Return this rank's random states."""
        packed: bytes | None = self._rng
        return None if packed is None else unpack(memoryview(packed), self._folder, "rng_state")


@dataclass(frozen=True, slots=True)
class _Provided:
    """The parts of a save: who reads each, and those that this rank has read."""

    readers: dict[int, int]
    own: dict[int, dict[str, Any]]


def _provided(run: Path, name: str, mesh: Mesh) -> _Provided:
    """Read every part on one rank: the one that wrote it, else one that sees a copy. RunError for one damaged everywhere."""
    paths: dict[int, list[Path]] = {}
    for folder, checkpoint in local_folder.found(run).get(name, {}).items():
        for part in checkpoint.parts:
            paths.setdefault(part, []).append(folder / part_file(part))
    counts: list[dict[int, int]] = all_gather_object({part: len(files) for part, files in paths.items()}, mesh.world)
    size = mesh.world.size
    candidates = {part: list(_candidates(part, counts)) for part in range(size)}
    provided = _Provided({}, {})
    for attempt in range(max(map(len, candidates.values()))):
        turn = {part: candidates[part][attempt] for part in range(size) if part not in provided.readers}
        if not turn:
            break
        failures: dict[int, str] = {}
        for part, (rank, number) in turn.items():
            if rank == mesh.rank:
                try:
                    provided.own[part] = _read(paths[part][number])
                except RunError as error:
                    log.warning("%s", error)
                    failures[part] = str(error)
        failed = {part: text for each in all_gather_object(failures, mesh.world) for part, text in each.items()}
        provided.readers.update({part: rank for part, (rank, _) in turn.items() if part not in failed})
        lost = [text for part, text in failed.items() if attempt + 1 == len(candidates[part])]
        if lost:
            raise RunError(f"{lost[0]}; there is no other copy of it: remove {name} to go on without")
    return provided


def _candidates(part: int, counts: list[dict[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (rank, which of the files that it sees), the writer's first."""
    for rank in sorted(range(len(counts)), key=lambda rank: (rank != part, rank)):
        for number in range(counts[rank].get(part, 0)):
            yield rank, number


def _read(path: Path) -> dict[str, Any]:
    checksums = Checksums.read(path.parent)
    if path.name not in checksums.records:
        raise damaged(path, "it has no checksum")
    part: dict[str, Any] = unpack(checksums.read_file(path.name), path, "it")
    return part


def _exchanged(parts: _Provided, mesh: Mesh) -> tuple[dict[str, Any], dict[str, dict[Box, Tensor]]]:
    """Return what is this rank's of its own part, and every rectangle that it held, once, by tensor."""
    heads = {number: {key: part[key] for key in ("held", "items", "is_whole")} for number, part in parts.own.items()}
    for number, part in parts.own.items():
        heads[number]["dtypes"] = [data.dtype for data in part["data"]]
        if number != mesh.rank:
            heads[number]["main"] = {key: part[key] for key in ("common", "rng", "shapes")}
    index: dict[int, dict[str, Any]] = {}
    for mine in all_gather_object(heads, mesh.world):
        index.update(mine)
    takers: dict[Item, list[int]] = {}
    for rank in range(mesh.world.size):
        for item in index[rank]["held"]:
            takers.setdefault(item, []).append(rank)
    stored: dict[str, dict[Box, Tensor]] = {}
    for number in range(mesh.world.size):
        for place, item in enumerate(index[number]["items"]):
            for taker in [number] if index[number]["is_whole"] else takers[item]:
                data = _passed(parts, number, place, taker, index[number], mesh)
                if data is not None:
                    stored.setdefault(item[0], {})[Box(item[1], item[2])] = data
    main = parts.own.get(mesh.rank) or index[mesh.rank]["main"]
    return main, stored


def _passed(parts: _Provided, number: int, place: int, taker: int, head: Mapping[str, Any], mesh: Mesh) -> Tensor | None:
    """Pass a rectangle from the rank that read its part to one that takes it; return it there."""
    reader = parts.readers[number]
    if mesh.rank not in (reader, taker):
        return None
    if mesh.rank != reader:
        arrived = torch.empty(head["items"][place][2], dtype=head["dtypes"][place])
        receive(arrived, reader, mesh)
        return arrived
    data: Tensor = parts.own[number]["data"][place]
    if mesh.rank != taker:
        send(data, taker, mesh)
        return None
    return data
