"""`ckpt_format: torch`: one file a model-parallel rank, holding the plain local tensors of its layout.

`mp_rank_TT[_PPP]/model_optim_rng.pt` is written by the first of the data-parallel ranks. Optimizer state that the others hold
parts of (the distributed optimizer) is gathered into `distrib_optim.pt` beside it, so the data-parallel size may change;
tensor and pipeline sizes may not. A tensor's spans say which global indices its rows, columns, ... are.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.checkpoint.agree import everywhere
from primus.engine.checkpoint.archive import alone
from primus.engine.checkpoint.dist_plan import Box, Held, holdings
from primus.engine.checkpoint.files import Checksums, Record, damaged, save_object, unreadable
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError

__all__ = ["RankFiles", "save_tensors"]

_MAIN, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"

Spans = tuple[tuple[tuple[int, int], ...], ...]
"""For each dim the half-open ranges of global indices, ascending, that the local tensor consists of."""


def save_tensors(
    folder: Path,
    model: Mapping[str, Shards],
    optimizer: Mapping[str, Shards],
    *,
    common: Mapping[str, Any],
    rng: bytes | None,
    mesh: Mesh,
) -> list[Record]:
    """Write the files of every model-parallel rank; return their records on the first rank. `common` goes into each."""
    weights, _ = _collect(model, mesh)
    states, is_replicated = _collect(optimizer, mesh)
    states_rng = all_gather_object(rng, mesh.dp_cp)

    def write() -> list[Record]:
        if mesh.dp_cp.index != 0:
            return []
        own = folder / _name(mesh)
        own.mkdir(exist_ok=True)
        main = {
            **common,
            "layout": _layout(mesh),
            "model": weights,
            "optimizer": states if is_replicated else None,
            "rng_state": states_rng,
        }
        records = [save_object(own / _MAIN, main)]
        if not is_replicated:
            records.append(save_object(own / _OPTIMIZER, states))
        return [Record(f"{own.name}/{r.file}", r.size_bytes, r.items) for r in records]

    return [record for records in everywhere(mesh.world, write) for record in records]


class RankFiles:
    """This model-parallel rank's files, checked and mapped into memory. InputError under other tensor or pipeline sizes."""

    def __init__(self, folder: Path, mesh: Mesh, checksums: Checksums) -> None:
        self._folder, self._checksums = folder, checksums
        own = _name(mesh)
        present = own if (folder / own).is_dir() else min(folder.glob("mp_rank_*")).name
        self.main = self._map(f"{present}/{_MAIN}")
        """Everything but gathered optimizer state."""
        if self.main.get("layout") != _layout(mesh):
            raise InputError(_other_layout(folder, self.main.get("layout"), mesh))
        optimizer = self.main["optimizer"]
        if optimizer is None:
            optimizer = self._map(f"{own}/{_OPTIMIZER}")
        self._entries: dict[str, dict[str, Any]] = {**self.main["model"], **optimizer}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the global shape of every tensor."""
        return {name: tuple(entry["global_shape"]) for name, entry in self._entries.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return the dtype of every tensor."""
        return {name: entry["data"].dtype for name, entry in self._entries.items()}

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill rectangles in place."""
        with torch.no_grad():
            for name, shards in tensors.items():
                entry = self._entries[name]
                for chunk in shards.chunks:
                    if chunk.data.numel():
                        box = Box(tuple(chunk.offsets), tuple(chunk.data.shape))
                        chunk.data.copy_(entry["data"][_slices(box, entry["spans"])])

    def _map(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        if name in self._checksums.records:
            self._checksums.read_file(name)
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)  # type: ignore[no-any-return]
        except Exception as error:
            raise damaged(path, unreadable("it", error)) from error


def _collect(tensors: Mapping[str, Shards], mesh: Mesh) -> tuple[dict[str, dict[str, Any]], bool]:
    """Return the whole local tensors on the first data-parallel rank, and whether every rank holds all of them anyway."""
    held = all_gather_object(holdings(tensors), mesh.dp_cp)
    if any(one != held[0] for one in held):
        return _gather(held, tensors, mesh), False
    if mesh.dp_cp.index != 0:
        return {}, True
    return {name: _local(one.boxes, tensors[name]) for name, one in held[0].items()}, True


def _gather(held: Sequence[Mapping[str, Held]], optimizer: Mapping[str, Shards], mesh: Mesh) -> dict[str, dict[str, Any]]:
    """Collect the data-parallel ranks' rectangles on the first of them, one rectangle at a time; {} on the others."""
    group, result = mesh.dp_cp, dict[str, dict[str, Any]]()
    names = {name: one for rank in held for name, one in rank.items()}
    for name, one in names.items():
        owners: dict[Box, tuple[int, int]] = {}
        for rank, tensors in enumerate(held):
            for number, box in enumerate(tensors[name].boxes if name in tensors else ()):
                owners.setdefault(box, (rank, number))
        spans = _spans(owners)
        whole = torch.empty(_sizes(spans), dtype=one.dtype) if group.index == 0 else torch.empty(0)
        for box, (rank, number) in owners.items():
            if not box.numel:
                continue
            if group.index == rank:
                data = optimizer[name].chunks[number].data.detach().contiguous()
                if rank != 0:
                    dist.send(_raw(data), dst=group.ranks[0], group=group.handle)
                else:
                    whole[_slices(box, spans)] = data.cpu()
            elif group.index == 0:
                data = torch.empty(box.sizes, dtype=one.dtype, device=mesh.device)
                dist.recv(_raw(data), src=group.ranks[rank], group=group.handle)
                whole[_slices(box, spans)] = data.cpu()
        if group.index == 0:
            result[name] = {"global_shape": one.global_shape, "spans": spans, "data": whole}
    return result


def _raw(data: Tensor) -> Tensor:
    """Bytes travel in any dtype and backend alike."""
    return data.reshape(-1).view(torch.uint8)


def _local(boxes: Sequence[Box], shards: Shards) -> dict[str, Any]:
    """Put the rectangles of one rank together as the local tensor that they are cut from."""
    spans = _spans(boxes)
    filled = [(box, chunk.data) for box, chunk in zip(boxes, shards.chunks, strict=True) if box.numel]
    if len(filled) == 1:
        whole = alone(filled[0][1])
    else:
        whole = torch.empty(_sizes(spans), dtype=shards.dtype)
        for box, data in filled:
            whole[_slices(box, spans)] = data.detach().cpu()
    return {"global_shape": tuple(shards.global_shape), "spans": spans, "data": whole}


def _spans(boxes: Iterable[Box]) -> Spans:
    filled = [box for box in boxes if box.numel]
    return tuple(_union([(b.offsets[d], b.offsets[d] + b.sizes[d]) for b in filled]) for d in range(_num_dims(boxes)))


def _num_dims(boxes: Iterable[Box]) -> int:
    return max((len(box.sizes) for box in boxes), default=1)


def _union(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def _sizes(spans: Spans) -> tuple[int, ...]:
    return tuple(sum(stop - start for start, stop in ranges) for ranges in spans)


def _slices(box: Box, spans: Spans) -> tuple[slice, ...]:
    """Return where a global box lies in the local tensor."""
    return tuple(_slice(offset, size, ranges) for offset, size, ranges in zip(box.offsets, box.sizes, spans, strict=True))


def _slice(offset: int, size: int, ranges: Sequence[tuple[int, int]]) -> slice:
    before = 0
    for start, stop in ranges:
        if start <= offset and offset + size <= stop:
            return slice(before + offset - start, before + offset - start + size)
        before += stop - start
    raise InputError(f"the checkpoint's file does not hold the indices {offset} to {offset + size} that this rank asks for")


def _name(mesh: Mesh) -> str:
    suffix = f"_{mesh.coordinates.pp:03d}" if mesh.layout.pipeline > 1 else ""
    return f"mp_rank_{mesh.coordinates.tp:02d}{suffix}"


def _layout(mesh: Mesh) -> dict[str, int]:
    sizes = {"tensor": mesh.layout.tensor, "pipeline": mesh.layout.pipeline}
    if mesh.etp.size != mesh.tp.size:
        # A folder's ranks then hold a part of the experts only.
        sizes |= {"expert": mesh.ep.size, "expert_tensor": mesh.etp.size}
    return sizes


def _other_layout(folder: Path, saved: Mapping[str, int] | None, mesh: Mesh) -> str:
    if saved is None:
        return f"{folder} is of ckpt_format torch and was not written by Primus; convert it to torch_dist first"
    names = {"tensor": "tensor_model", "pipeline": "pipeline_model", "expert": "expert_model", "expert_tensor": "expert_tensor"}

    def said(sizes: Mapping[str, int]) -> str:
        return " and ".join(f"{names[name]}_parallel_size {size}" for name, size in sizes.items())

    return (
        f"{folder} was saved with ckpt_format torch by {said(saved)}, and loads into these only, not into "
        f"{said(_layout(mesh))}. Keep the sizes; a run that goes on from it with them and saves in ckpt_format torch_dist "
        "makes one that loads into any layout, and into the one process that exports"
    )
