"""`UpcycledSource`: the checkpoint of a dense model, read as one of the sparse model that is made of it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.load import Source
from primus.engine.config.model import ModelConfig
from primus.engine.config.serialize import from_dict
from primus.engine.model.moe.upcycling import Upcycling
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

__all__ = ["UpcycledSource"]

Shape = tuple[int, ...]
_PARTS = ("linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias")


class UpcycledSource:
    """Experts are slices of dense layers; what routers hold stays as it was drawn."""

    def __init__(self, dense: Source, recipe: Upcycling) -> None:
        """InputError if it is the checkpoint of another model, or if no rank can read a whole layer of it."""
        if not dense.is_shared:
            raise InputError("moe_use_upcycling reads checkpoints of ckpt_format torch_dist: save the dense model in it")
        _check(from_dict(dense.common["container"]["model"], ModelConfig, "model"), recipe.dense)
        self._dense, self._recipe = dense, recipe
        self.common: Mapping[str, Any] = dense.common
        self.is_shared: bool = dense.is_shared
        mlps = [f"decoder.layers.{number}.mlp." for number in recipe.layers]
        self._origin = {f"{mlp}experts.{part}": f"{mlp}{part}" for mlp in mlps for part in _PARTS}
        self._fresh = {f"{mlp}router.{name}": name for mlp in mlps for name in recipe.fresh}

    def shapes(self) -> dict[str, Shape]:
        """Return those of the sparse model."""
        stored = self._dense.shapes()
        made = {name: self._sliced(name, stored[dense]) for name, dense in self._origin.items() if dense in stored}
        used = set(self._origin.values())
        rest = {name: shape for name, shape in stored.items() if name not in used}
        return rest | made | {name: self._router_shape(name, stored) for name in self._fresh}

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return those of the sparse model's tensors that are stored."""
        stored = self._dense.dtypes()
        return stored | {name: stored[dense] for name, dense in self._origin.items() if dense in stored}

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill this rank's rectangles; one dense matrix is in memory at a time."""
        made = {name: shards for name, shards in tensors.items() if name in self._origin}
        self._dense.load({n: s for n, s in tensors.items() if n not in made and n not in self._fresh})
        shapes, dtypes = self._dense.shapes(), self._dense.dtypes()
        for name, shards in made.items():
            dense = self._origin[name]
            whole = torch.empty(shapes[dense], dtype=dtypes[dense])
            self._dense.load({dense: Shards(shapes[dense], dtypes[dense], [Chunk((0,) * whole.dim(), whole)])})
            _fill(shards, self._slices(name, whole))

    def rng(self, mesh: Mesh, data_rank: int) -> dict[str, Any] | None:
        """Return a rank's random states."""
        return self._dense.rng(mesh, data_rank)

    def _router_shape(self, name: str, stored: Mapping[str, Shape]) -> Shape:
        if self._fresh[name] != "weight":
            return (self._recipe.experts,)
        hidden = stored.get(name.replace("router.weight", "linear_fc1.weight"), (0, 0))[1]
        return self._recipe.experts, hidden

    def _sliced(self, name: str, dense: Shape) -> Shape:
        """Return the shape of a stack of experts."""
        with torch.device("meta"):
            slices = self._slices(name, torch.empty(dense))
        return self._recipe.experts, *slices.shape[1:]

    def _slices(self, name: str, whole: Tensor) -> Tensor:
        """Return the G slices of a dense layer's tensor, scaled."""
        G, halves = self._recipe.granularity, self._recipe.halves
        if name.endswith("linear_fc2.bias"):
            return whole.expand(G, -1)
        scaled: Tensor = whole.to(torch.promote_types(whole.dtype, torch.float32)) * self._recipe.scale
        if name.endswith("linear_fc2.weight"):
            return scaled.view(len(scaled), G, -1).transpose(0, 1)
        return scaled.view(halves, G, -1, *scaled.shape[1:]).transpose(0, 1).flatten(1, 2)


def _check(stored: ModelConfig, dense: ModelConfig) -> None:
    """InputError if `stored` is not the dense model that is asked for, whatever its vocabulary."""
    if stored.moe.layers:
        raise InputError(
            "moe_use_upcycling true asks for the checkpoint of a dense model, and "
            f"this one has {stored.moe.num_experts} experts already: "
            "set moe_use_upcycling: false to go on from them, or load that of the dense model"
        )
    found = [each for each in differences(stored, dense) if each[0] != "vocab_size"]
    if found:
        listed = ", ".join(f"{path.rpartition('.')[2]} is {theirs} there and {ours} here" for path, theirs, ours in found)
        raise InputError(
            f"moe_use_upcycling true starts from the checkpoint of another model: {listed}; write what the dense model has, or "
            "load that of such a one"
        )


@torch.no_grad()
def _fill(shards: Shards, slices_G: Tensor) -> None:
    """Expert e is slice e mod G."""
    for chunk in shards.chunks:
        first, *starts = chunk.offsets
        for place, expert in enumerate(chunk.data, start=first):
            part = tuple(slice(start, start + size) for start, size in zip(starts, expert.shape, strict=True))
            expert.copy_(slices_G[place % len(slices_G)][part])
