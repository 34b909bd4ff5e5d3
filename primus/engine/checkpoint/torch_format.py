"""`ckpt_format: torch`: one file of whole local tensors a model-parallel rank, and one of its optimizer state.

`mp_rank_TT/model_optim_rng.pt` holds `model` under parameter names, `mp_rank_TT/distrib_optim.pt` the optimizer's
rectangles, gathered from the data-parallel ranks. It loads into the same tensor-parallel size only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint.checksum import file_checksum
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

__all__ = ["is_torch_format", "load_tensors", "save_tensors", "stored_shapes"]

_MODEL, _OPTIMIZER = "model_optim_rng.pt", "distrib_optim.pt"
Entry = dict[str, Any]
"""A tensor on disk: `global_shape`, and `chunks` as pairs of offsets and values."""


def is_torch_format(folder: Path) -> bool:
    """Return whether a checkpoint folder is of this format."""
    return any(folder.glob("mp_rank_*"))


def save_tensors(folder: Path, model: Mapping[str, Shards], optimizer: Mapping[str, Shards], *, mesh: Mesh) -> dict[str, str]:
    """Write this model-parallel rank's files on its first data-parallel rank; return their checksums."""
    gathered = all_gather_object({name: _entry(shards) for name, shards in optimizer.items()}, mesh.dp_cp)
    if mesh.dp_cp.index != 0:
        return {}
    own = folder / _name(mesh)
    own.mkdir(parents=True, exist_ok=True)
    torch.save({"model": {name: _whole(shards) for name, shards in model.items()}, "layout": _layout(mesh)}, own / _MODEL)
    torch.save(_merged(gathered), own / _OPTIMIZER)
    return {f"{own.name}/{name}": file_checksum(own / name) for name in (_MODEL, _OPTIMIZER)}


def stored_shapes(folder: Path, model: Mapping[str, Shards], *, mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """Return the global shape of every tensor stored for this rank; InputError under another tensor-parallel size."""
    own = _own_folder(folder, mesh)
    saved: dict[str, Tensor] = _read(own / _MODEL)["model"]
    shapes = {}
    for name, tensor in saved.items():
        wanted = model.get(name)
        fits = wanted is not None and tuple(_whole(wanted).shape) == tuple(tensor.shape)
        shapes[name] = wanted.global_shape if wanted is not None and fits else tuple(tensor.shape)
    optimizer: dict[str, Entry] = _read(own / _OPTIMIZER)
    return shapes | {name: tuple(entry["global_shape"]) for name, entry in optimizer.items()}


def load_tensors(folder: Path, model: Mapping[str, Shards], optimizer: Mapping[str, Shards], *, mesh: Mesh) -> None:
    """Fill the rectangles in place."""
    own = _own_folder(folder, mesh)
    weights: dict[str, Tensor] = _read(own / _MODEL)["model"]
    for name, shards in model.items():
        parts = weights[name].split([chunk.data.shape[_cut(shards)] for chunk in shards.chunks], dim=_cut(shards))
        for chunk, part in zip(shards.chunks, parts, strict=True):
            chunk.data.copy_(part)
    if optimizer:
        states: dict[str, Entry] = _read(own / _OPTIMIZER)
        for name, shards in optimizer.items():
            for offsets, data in states[name]["chunks"]:
                for chunk in shards.chunks:
                    _copy_overlap(Chunk(tuple(offsets), data), chunk)


def _name(mesh: Mesh) -> str:
    suffix = f"_{mesh.coordinates.pp:03d}" if mesh.layout.pipeline > 1 else ""
    return f"mp_rank_{mesh.coordinates.tp:02d}{suffix}"


def _layout(mesh: Mesh) -> dict[str, int]:
    return {"tensor": mesh.layout.tensor, "pipeline": mesh.layout.pipeline}


def _own_folder(folder: Path, mesh: Mesh) -> Path:
    first = min(folder.glob("mp_rank_*"))
    saved = _read(first / _MODEL)["layout"]
    if saved != _layout(mesh):
        raise InputError(
            f"{folder} was saved with ckpt_format torch by tensor x pipeline parallel size {saved['tensor']} x "
            f"{saved['pipeline']} and loads into that only, not into {mesh.layout.tensor} x {mesh.layout.pipeline}; "
            "keep the sizes, or save with ckpt_format torch_dist, which loads into any layout"
        )
    return folder / _name(mesh)


def _read(file: Path) -> Any:
    return torch.load(file, map_location="cpu", mmap=True, weights_only=True)


def _entry(shards: Shards) -> Entry:
    chunks = [(chunk.offsets, chunk.data.detach().cpu().contiguous().clone()) for chunk in shards.chunks]
    return {"global_shape": shards.global_shape, "chunks": chunks}


def _merged(ranks: list[dict[str, Entry]]) -> dict[str, Entry]:
    """Collect the rectangles of all ranks; those that several ranks hold are kept once."""
    whole: dict[str, Entry] = {}
    for entries in ranks:
        for name, entry in entries.items():
            known = whole.setdefault(name, {"global_shape": entry["global_shape"], "chunks": []})
            seen = {tuple(offsets) for offsets, _ in known["chunks"]}
            known["chunks"] += [(offsets, data) for offsets, data in entry["chunks"] if tuple(offsets) not in seen]
    return whole


def _cut(shards: Shards) -> int:
    """Return the dim along which the rectangles of a parameter follow one another."""
    first, last = shards.chunks[0].offsets, shards.chunks[-1].offsets
    return next((dim for dim, (a, b) in enumerate(zip(first, last, strict=True)) if a != b), 0)


def _whole(shards: Shards) -> Tensor:
    """Return a parameter's rectangles as the local tensor they are cut from (its padding rows left out)."""
    return torch.cat([chunk.data.detach().cpu() for chunk in shards.chunks], dim=_cut(shards))


def _copy_overlap(source: Chunk, target: Chunk) -> None:
    source_view, target_view = source.data, target.data
    for dim, (a, b) in enumerate(zip(source.offsets, target.offsets, strict=True)):
        start = max(a, b)
        length = min(a + source.data.shape[dim], b + target.data.shape[dim]) - start
        if length <= 0:
            return
        source_view = source_view.narrow(dim, start - a, length)
        target_view = target_view.narrow(dim, start - b, length)
    target_view.copy_(source_view)
