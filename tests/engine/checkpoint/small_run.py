"""A run's state small enough to compare whole: four tensors with every kind of sharding, and their Adam moments."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint.load import Loaded, load_checkpoint
from primus.engine.checkpoint.local import newest_start
from primus.engine.checkpoint.rng import capture_rng
from primus.engine.checkpoint.save import Contents, save_checkpoint, save_non_persistent
from primus.engine.checkpoint.start import find_start
from primus.engine.checkpoint.state import TrainState
from primus.engine.config import CheckpointConfig, DistConfig, ParallelConfig
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.mesh import Mesh, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Sharding, Shards, flat_range_shards, parameter_shards, slice_global

VOCAB = 13
SHARDINGS = {
    "embedding.word_embeddings.weight": ((VOCAB, 4), Sharding(dim=0, valid_rows=VOCAB)),
    "decoder.layers.0.mlp.linear_fc1.weight": ((16, 4), Sharding(dim=0, blocks=2)),
    "decoder.layers.0.mlp.linear_fc2.weight": ((4, 8), Sharding(dim=1)),
    "decoder.final_layernorm.weight": ((4,), Sharding(dim=None)),
}
MODEL_CONFIG: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 4,
    "attention": {"num_attention_heads": 2, "num_query_groups": 2, "kv_channels": 2},
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "position": {"type": "rope"},
    "tie_embeddings": True,
}
KINDS = ("exp_avg", "exp_avg_sq")


@dataclass
class SmallRun:
    """The state of one rank; `values` is 0 for a fresh run, else a number that all contents derive from."""

    mesh: Mesh
    streams: RandomStreams
    model: dict[str, Shards]
    optimizer: dict[str, Shards]
    values: int

    def contents(self, iteration: int) -> Contents:
        return Contents(
            state=TrainState(iteration=iteration, consumed_train_samples=8 * iteration),
            model=self.model,
            optimizer=self.optimizer,
            optimizer_common={"step": iteration, "scheduler": {"num_steps": 8 * iteration}, "loss_scaler": None},
            rng=capture_rng(self.streams, self.mesh.device),
            container={"model": MODEL_CONFIG},
        )

    def save(self, config: CheckpointConfig, iteration: int) -> Path:
        return save_checkpoint(config, self.contents(iteration), mesh=self.mesh)

    def save_non_persistent(self, config: CheckpointConfig, iteration: int) -> Path:
        return save_non_persistent(config, self.contents(iteration), mesh=self.mesh)

    def load(self, config: CheckpointConfig, container: dict[str, Any] | None = None) -> Loaded:
        start = newest_start(find_start(config), config, self.mesh)
        assert start is not None
        model = container or MODEL_CONFIG
        return load_checkpoint(
            start,
            config,
            model=self.model,
            optimizer=self.optimizer,
            container={"model": model},
            mesh=self.mesh,
            on_weights=lambda: None,
        )

    def check(self, values: int, *, optimizer: bool = True) -> None:
        """Assert that every rectangle holds what a run with these `values` holds there."""
        expected = dict(whole_tensors(values))
        tensors = self.model | (self.optimizer if optimizer else {})
        assert tensors
        for name, shards in tensors.items():
            whole = expected[name].to(shards.dtype)
            assert tuple(shards.global_shape) == tuple(whole.shape)
            for chunk in shards.chunks:
                part = whole
                for dim, (offset, size) in enumerate(zip(chunk.offsets, chunk.data.shape, strict=True)):
                    part = part.narrow(dim, offset, size)
                assert torch.equal(chunk.data, part), f"{name} at {chunk.offsets}"


def whole_tensors(values: int) -> list[tuple[str, Tensor]]:
    """Return every global tensor of a run with these values."""
    generator = torch.Generator().manual_seed(values)
    names = [*SHARDINGS, *(f"optimizer.state.{kind}.{name}" for kind in KINDS for name in SHARDINGS)]
    shapes = [
        SHARDINGS[name.removeprefix("optimizer.state.exp_avg_sq.").removeprefix("optimizer.state.exp_avg.")][0]
        for name in names
    ]
    scale = 1.0 if values else 0.0
    return [(name, scale * torch.randn(shape, generator=generator)) for name, shape in zip(names, shapes, strict=True)]


def single_run(values: int, dtype: torch.dtype = torch.float32) -> SmallRun:
    """Return the run of one process."""
    return _run(single_mesh(), values, sharded_optimizer=False, dtype=dtype)


def ranked_run(layout: Layout, values: int, *, sharded_optimizer: bool, dtype: torch.dtype = torch.float32) -> SmallRun:
    """Return this rank's part of the run of a layout; within `run_ranks`."""
    parallel = ParallelConfig(tensor_model_parallel_size=layout.tensor)
    mesh = build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu")) if layout.world_size > 1 else single_mesh()
    return _run(mesh, values, sharded_optimizer=sharded_optimizer, dtype=dtype)


def _run(mesh: Mesh, values: int, *, sharded_optimizer: bool, dtype: torch.dtype) -> SmallRun:
    whole = dict(whole_tensors(values))
    model, optimizer = {}, {}
    for name, (_, sharding) in SHARDINGS.items():
        local = _slice(whole[name], sharding, mesh).to(dtype)
        model[name] = parameter_shards(local, sharding, mesh)
    for kind in KINDS:
        locals_ = {name: _slice(whole[f"optimizer.state.{kind}.{name}"], s, mesh) for name, (_, s) in SHARDINGS.items()}
        if sharded_optimizer:
            optimizer |= _flat_part(kind, locals_, mesh)
        else:
            for name, local in locals_.items():
                optimizer[f"optimizer.state.{kind}.{name}"] = parameter_shards(local, SHARDINGS[name][1], mesh)
    return SmallRun(mesh, RandomStreams(7, mesh.coordinates), model, optimizer, values)


def _slice(whole: Tensor, sharding: Sharding, mesh: Mesh) -> Tensor:
    if sharding.valid_rows is not None:
        padded = math.ceil(whole.shape[0] / (2 * mesh.tp.size)) * 2 * mesh.tp.size
        whole = torch.cat([whole, whole.new_full((padded - whole.shape[0], *whole.shape[1:]), 9.0)])
    return slice_global(whole, sharding, mesh).clone()


def _flat_part(kind: str, locals_: dict[str, Tensor], mesh: Mesh) -> dict[str, Shards]:
    """Return this data-parallel rank's share of the moments laid end to end, which ignores parameter boundaries."""
    flat = torch.cat([local.reshape(-1) for local in locals_.values()])
    share = math.ceil(len(flat) / mesh.dp.size)
    low, high = mesh.dp.index * share, min(len(flat), (mesh.dp.index + 1) * share)
    result, position = {}, 0
    for name, local in locals_.items():
        start, stop = max(low, position), min(high, position + local.numel())
        if start < stop:
            piece = flat[start:stop]
            result[f"optimizer.state.{kind}.{name}"] = flat_range_shards(
                piece, start - position, local.shape, SHARDINGS[name][1], mesh
            )
        position += local.numel()
    return result
