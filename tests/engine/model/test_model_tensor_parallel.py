"""Tensor and sequence parallelism equal one process in float64: logits, losses, gradients at 1e-12; equal first weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from primus.engine.config import DistConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.tp_overlap import ColumnOverlap, ProductOverlap, RowOverlap, TPOverlapConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.collectives import all_gather_object, all_reduce_
from primus.engine.parallel.mesh import Mesh, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import parameter_shards, sharding_of

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


VARIANTS = {
    "mha": BASE,
    "two-groups": replace(BASE, attention=grouped(2)),
    "one-group": replace(BASE, attention=grouped(1, add_qkv_bias=True)),
    "tied": replace(BASE, tie_embeddings=True),
    "gpt2": replace(
        BASE,
        tie_embeddings=True,
        add_bias_linear=True,
        normalization="LayerNorm",
        activation="gelu",
        attention=grouped(4, add_qkv_bias=True),
        position=PositionConfig(type="learned_absolute", max_position_embeddings=S),
    ),
    "qk-norm": replace(BASE, attention=grouped(2, qk_norm="model"), layernorm_1p=True),
    "one-group-qk-norm": replace(BASE, attention=grouped(1, qk_norm="model", backend="local"), residual_post_layernorm=True),
    "whole-ranks-of-padding": replace(BASE, vocab_size=10, make_vocab_size_divisible_by=16, tie_embeddings=True),
    "quick-geglu": replace(BASE, activation="quick_geglu", add_bias_linear=True),
}


def build(config: ModelConfig, mesh: Mesh, dtype: torch.dtype = torch.float64) -> GPTModel:
    (model,) = build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=5, streams=RandomStreams(5, mesh.coordinates))
    return model


def batch(config: ModelConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(config.vocab_size, (B, S), generator=generator)
    labels = torch.randint(config.vocab_size, (B, S), generator=generator)
    mask = (torch.rand(B, S, generator=generator) > 0.2).double()
    return tokens, torch.arange(S).expand(B, S), labels, mask


def run(config: ModelConfig, mesh: Mesh) -> dict[str, Tensor]:
    """Return logits, losses, and whole gradients of both forms of the loss, by name."""
    model = build(config, mesh)
    tokens, positions, labels, mask = batch(config)
    with torch.no_grad():
        results = {"logits": model(tokens, positions), "losses": model(tokens, positions, labels_BS=labels)}
    for form in ("chunked", "whole logits"):
        model.zero_grad()
        if form == "chunked":
            loss = model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
        else:
            loss = (model(tokens, positions, labels_BS=labels) * mask).sum()
        (0.7 * loss).backward()
        results[f"{form}: loss"] = loss.detach()
        for name, grad in whole({name: summed(p, mesh) for name, p in model.named_parameters()}, model, mesh).items():
            results[f"{form}: {name}"] = grad
    return results


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


def check_equal(rank: int, config: ModelConfig, expected: dict[str, Tensor]) -> None:
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    actual = run(config, mesh)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["", "sequence-parallel"])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_parallel_equals_one_process(variant: str, tp: int, sequence_parallel: bool) -> None:
    config = VARIANTS[variant]
    parallel = ParallelConfig(tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel)
    run_ranks(check_equal, tp, replace(config, parallel=parallel), run(config, single_mesh()))


RING, PIPE = ProductOverlap(method="ring_exchange"), ProductOverlap(method="pipeline", num_splits=3)


def overlapped(column: ColumnOverlap, row: RowOverlap) -> TPOverlapConfig:
    return TPOverlapConfig(qkv=column, proj=row, fc1=column, fc2=row)


OVERLAPS = {
    "rings": overlapped(ColumnOverlap(fprop=RING), RowOverlap(fprop=RING, dgrad=RING)),
    "pipes": overlapped(ColumnOverlap(fprop=RING, dgrad=PIPE, wgrad=None), RowOverlap(fprop=PIPE)),
    "rings-in-the-backward": overlapped(ColumnOverlap(dgrad=RING, wgrad=None), RowOverlap(dgrad=RING)),
    "in-turns": overlapped(ColumnOverlap(dgrad=None, wgrad=None), RowOverlap()),
}


@pytest.mark.parametrize(
    ("overlap", "variant", "tp"),
    [
        ("rings", "one-group", 4),
        ("rings", "gpt2", 2),
        ("pipes", "one-group", 2),
        ("pipes", "gpt2", 4),
        ("rings-in-the-backward", "quick-geglu", 4),
        ("in-turns", "two-groups", 2),
    ],
)
def test_overlapped_forms_equal_one_process(overlap: str, variant: str, tp: int) -> None:
    """With 8 positions on 2 or 4 ranks, three pieces are uneven ones, or more than there are rows."""
    config = VARIANTS[variant]
    parallel = ParallelConfig(tensor_model_parallel_size=tp, sequence_parallel=True)
    divided = replace(config, parallel=parallel, tp_overlap=OVERLAPS[overlap])
    run_ranks(check_equal, tp, divided, run(config, single_mesh()))


def test_chunks_of_logits_change_nothing() -> None:
    results = run(BASE, single_mesh())
    for name, value in results.items():
        if name.startswith("chunked: "):
            other = results[name.replace("chunked", "whole logits")]
            torch.testing.assert_close(value, other, rtol=1e-13, atol=1e-14, msg=lambda m, n=name: f"{n}: {m}")


def first_weights(rank: int, config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    model = build(config, mesh, dtype)
    return whole({name: parameter.data for name, parameter in model.named_parameters()}, model, mesh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["two-groups", "gpt2"])
def test_first_weights_do_not_know_the_layout(variant: str, dtype: torch.dtype) -> None:
    config = VARIANTS[variant]
    (expected,) = run_ranks(first_weights, 1, config, dtype)
    for tp in (2, 4):
        parallel = ParallelConfig(tensor_model_parallel_size=tp, sequence_parallel=True)
        for actual in run_ranks(first_weights, tp, replace(config, parallel=parallel), dtype):
            assert actual.keys() == expected.keys()
            for name, value in expected.items():
                assert torch.equal(actual[name], value), name


def test_ranks_hold_different_slices() -> None:
    config = replace(BASE, parallel=ParallelConfig(tensor_model_parallel_size=2))
    first, second = run_ranks(own_fc1, 2, config)
    assert not torch.equal(first, second)


def own_fc1(rank: int, config: ModelConfig) -> Tensor:
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    return build(config, mesh).decoder.layers["0"].mlp.linear_fc1.weight.detach()
