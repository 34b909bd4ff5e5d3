"""`global_shapes`: what a whole model holds, whatever its layout."""

from dataclasses import replace

import torch

from primus.engine.config import ParallelConfig, PipelineConfig, RecomputeConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.tp_overlap import TPOverlapConfig
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import buffer_shards, global_parameters, weight_shards

__all__ = ["global_shapes"]


def global_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a whole model, padding left out; nothing is allocated for its matrices."""
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
    chunks = build_model(
        whole, mesh=mesh, dtype=torch.float32, device="cpu", seed=0, streams=RandomStreams(0, mesh.coordinates)
    )
    shards = {**weight_shards(global_parameters(chunks), mesh), **buffer_shards(chunks)}
    return {name: each.global_shape for name, each in shards.items()}
