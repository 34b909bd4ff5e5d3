"""What a whole model holds, whatever its layout: `global_shapes`, `global_dtypes`."""

from dataclasses import replace

import torch

from primus.engine.config import ParallelConfig, PipelineConfig, RecomputeConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.tp_overlap import TPOverlapConfig
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Shards, buffer_shards, global_parameters, weight_shards

__all__ = ["global_dtypes", "global_shapes"]


def global_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a whole model, padding left out; nothing is allocated for its matrices."""
    return {name: each.global_shape for name, each in _whole(model, torch.float32).items()}


def global_dtypes(model: ModelConfig, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the dtypes of all tensors of a model that is built in `dtype`."""
    return {name: each.dtype for name, each in _whole(model, dtype).items()}


def _whole(model: ModelConfig, dtype: torch.dtype) -> dict[str, Shards]:
    mesh = single_mesh()
    whole = replace(
        model,
        seq_length=1,
        parallel=ParallelConfig(),
        pipeline=PipelineConfig(),
        tp_overlap=TPOverlapConfig(),
        recompute=RecomputeConfig(),
        init=replace(model.init, meta_device=True),
    )
    chunks = build_model(whole, mesh=mesh, dtype=dtype, device="cpu", seed=0, streams=RandomStreams(0, mesh.coordinates))
    return {**weight_shards(global_parameters(chunks), mesh), **buffer_shards(chunks)}
