"""`MergedSource`: the checkpoint of adapters and that of their base, read as the whole model that they are together."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint.adapters import fingerprints_in
from primus.engine.checkpoint.fingerprint import digest, sums
from primus.engine.checkpoint.hf.shapes import global_dtypes, global_shapes
from primus.engine.checkpoint.hf.weights import HFSource
from primus.engine.checkpoint.load import Source, open_checkpoint
from primus.engine.checkpoint.start import find_base
from primus.engine.config import CheckpointConfig
from primus.engine.config.linears import part_rows
from primus.engine.config.model import ModelConfig
from primus.engine.config.peft import PEFTConfig
from primus.engine.config.serialize import from_dict
from primus.engine.kernels.low_rank import fused, merged
from primus.engine.parallel.mesh import Mesh, single_mesh
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

__all__ = ["MergedSource", "adapted_linears", "fingerprints", "whole", "with_base"]

Shape = tuple[int, ...]

_FACTOR = re.compile(r"(.+)\.adapter\.(?:adapter_(\w+)\.)?(linear_in\.weight|linear_out\.weight|weight_magnitude)")


class MergedSource:
    """Adapted weights are made as they are asked for, one whole matrix at a time; all others are the base's."""

    def __init__(self, base: Source, adapters: Source, peft: PEFTConfig, model: ModelConfig) -> None:
        """Both as one process opens them, which reads whole matrices."""
        self._base, self._adapters, self._peft, self._model = base, adapters, peft, model
        self.common: Mapping[str, Any] = adapters.common
        self.is_shared = True
        self._linears = adapted_linears(adapters.shapes())

    def shapes(self) -> dict[str, Shape]:
        """Return those of the base."""
        return self._base.shapes()

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return those of the base."""
        return self._base.dtypes()

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill this process's rectangles."""
        adapted = {name: shards for name, shards in tensors.items() if name.removesuffix(".weight") in self._linears}
        self._base.load({name: shards for name, shards in tensors.items() if name not in adapted})
        for name, shards in adapted.items():
            value = self._merged(name)
            for chunk in shards.chunks:
                part = tuple(slice(low, low + size) for low, size in zip(chunk.offsets, chunk.data.shape, strict=True))
                chunk.data.copy_(value[part])

    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None:
        """Return a rank's random states."""
        return self._adapters.rng(mesh, data_rank)

    def _merged(self, name: str) -> Tensor:
        linear = name.removesuffix(".weight")
        weight, prefix = whole(self._base, name), f"{linear}.adapter."
        parts = self._linears[linear]
        if parts == {""}:
            a, b = self._pair(prefix)
            rank = a.shape[-2]
        else:
            rows = part_rows(linear, len(weight), self._model)
            a, b = fused(
                {part: self._pair(f"{prefix}adapter_{part}.") for part in sorted(parts)}, rows.widths, groups=rows.groups
            )
            rank = len(a) // len(parts)
        magnitude = whole(self._adapters, f"{prefix}weight_magnitude") if self._peft.scheme == "dora" else None
        return merged(weight, a, b, scale=self._peft.alpha / rank, magnitude=magnitude)

    def _pair(self, prefix: str) -> tuple[Tensor, Tensor]:
        return whole(self._adapters, f"{prefix}linear_in.weight"), whole(self._adapters, f"{prefix}linear_out.weight")


def with_base(adapters: Source, model: ModelConfig, base: Path | None = None) -> Source:
    """Return the model that a checkpoint of adapters makes of the base that it names, or of that in `base`.

    InputError if that holds other weights than the adapters were trained on.
    """
    record, mesh = adapters.common["base"], single_mesh()
    path = base or record["path"]
    if path is None:
        raise InputError("the adapters stand beside random weights, which no file holds: they cannot be merged")
    if base is None and not Path(path).exists():
        raise InputError(f"the adapters were trained on {path}, which is not there any more: give its new place with --base")
    start = find_base(CheckpointConfig(pretrained_checkpoint=str(path)))
    assert start is not None
    source = HFSource(start.folder) if start.is_hugging_face else open_checkpoint(start.folder, mesh, None)
    _check_base(source, record, model)
    peft: PEFTConfig = from_dict(adapters.common["container"]["peft"], PEFTConfig, "peft")
    return MergedSource(source, adapters, peft, model)


def adapted_linears(names: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the linears that have adapters among the tensors of a checkpoint, with their parts; {""}: one for all of it."""
    found: dict[str, set[str]] = {}
    for name in names:
        match = None if name.startswith("optimizer.") else _FACTOR.fullmatch(name)
        if match is not None:
            found.setdefault(match[1], set()).add(match[2] or "")
    return found


def fingerprints(source: Source, model: ModelConfig, dtypes: Sequence[torch.dtype]) -> dict[str, str]:
    """Return the fingerprint that the weights of a whole model have in runs of each dtype, one tensor in memory at a time."""
    casts = {dtype: global_dtypes(model, dtype) for dtype in dtypes}
    totals: dict[torch.dtype, dict[str, int]] = {dtype: {} for dtype in dtypes}
    for name in casts[dtypes[0]]:
        stored = whole(source, name)
        for dtype, cast in casts.items():
            value = stored.to(cast[name])
            shards = Shards(tuple(value.shape), value.dtype, [Chunk((0,) * value.dim(), value)])
            totals[dtype][name] = sum(sums(shards).values())
    return {str(dtype): digest(each) for dtype, each in totals.items()}


def whole(source: Source, name: str) -> Tensor:
    """Read a whole tensor."""
    shape, dtype = source.shapes()[name], source.dtypes()[name]
    value = torch.empty(shape, dtype=dtype)
    source.load({name: Shards(shape, dtype, [Chunk((0,) * len(shape), value)])})
    return value


def _check_base(source: Source, record: Mapping[str, Any], model: ModelConfig) -> None:
    """InputError if a base is not the one that a checkpoint of adapters names by its fingerprint."""
    held, wanted = source.shapes(), global_shapes(model)
    other = next((each for each, shape in wanted.items() if held.get(each) != shape), None)
    if other is not None:
        here = f"has shape {list(held[other])}" if other in held else "is not there"
        raise InputError(
            f"the adapters were trained on {record['path']}, and the base is another model: {other} {here}, and in theirs "
            f"has shape {list(wanted[other])}; give the base that they need"
        )
    for name, known in list(fingerprints_in(record).items())[:1]:
        dtype = getattr(torch, str(name).removeprefix("torch."))
        found = fingerprints(source, model, (dtype,))[name]
        if found != known:
            raise InputError(
                f"the adapters were trained on {record['path']} (fingerprint {known}), and the base there has {found}: give "
                "the base that they need"
            )
