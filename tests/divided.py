"""A small model in float64, a batch for it, and its gradients put together from the rectangles of tensor-parallel ranks."""

from typing import Any

import torch
from torch import Tensor

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.collectives import all_gather_object, all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import parameter_shards, sharding_of

__all__ = ["BASE", "VOCAB", "B", "S", "batch", "build", "grouped", "summed", "whole"]

VOCAB, B, S = 90, 2, 8
BASE = ModelConfig(
    num_layers=2,
    hidden_size=16,
    ffn_hidden_size=24,
    seq_length=S,
    vocab_size=VOCAB,
    make_vocab_size_divisible_by=8,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=4, kv_channels=6),
    position=PositionConfig(max_position_embeddings=S),
    init=InitConfig(method_std=0.3),
)


def grouped(groups: int, **more: Any) -> AttentionConfig:
    return AttentionConfig(num_attention_heads=4, num_query_groups=groups, kv_channels=6, **more)


def build(
    config: ModelConfig, mesh: Mesh, dtype: torch.dtype = torch.float64, *, streams: RandomStreams | None = None
) -> GPTModel:
    streams = streams or RandomStreams(5, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=5, streams=streams)
    return model


def batch(config: ModelConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(config.vocab_size, (B, S), generator=generator)
    labels = torch.randint(config.vocab_size, (B, S), generator=generator)
    mask = (torch.rand(B, S, generator=generator) > 0.2).double()
    return tokens, torch.arange(S).expand(B, S), labels, mask


def summed(parameter: torch.nn.Parameter, mesh: Mesh) -> Tensor:
    """Return the gradient, completed over the ranks where each has a part."""
    assert parameter.grad is not None
    return all_reduce_(parameter.grad.clone(), mesh.tp) if sharding_of(parameter).sequence_parallel_grad else parameter.grad


def whole(local: dict[str, Tensor], model: GPTModel, mesh: Mesh) -> dict[str, Tensor]:
    """Put the ranks' rectangles together; replicated tensors arrive from every rank and have to agree."""
    parameters = dict(model.named_parameters())
    shards = {name: parameter_shards(tensor, sharding_of(parameters[name]), mesh) for name, tensor in local.items()}
    own = {name: [(chunk.offsets, chunk.data.clone()) for chunk in shard.chunks] for name, shard in shards.items()}
    full = {name: torch.full(shard.global_shape, torch.nan, dtype=shard.dtype) for name, shard in shards.items()}
    for name, offsets, data in [(n, *c) for part in all_gather_object(own, mesh.tp) for n, cs in part.items() for c in cs]:
        place = tuple(slice(o, o + n) for o, n in zip(offsets, data.shape, strict=True))
        known = full[name][place]
        torch.testing.assert_close(torch.where(known.isnan(), data, known), data, rtol=0, atol=1e-13)
        full[name][place] = data
    return full
