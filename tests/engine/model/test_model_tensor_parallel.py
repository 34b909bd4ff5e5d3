"""Tensor and sequence parallelism equal one process in float64: logits, losses, gradients at 1e-12; equal first weights."""

from dataclasses import replace

import pytest
import torch
from divided import BASE, S, batch, build, grouped, summed, whole
from ranks import run_ranks
from torch import Tensor

from primus.engine.config import DistConfig
from primus.engine.config.model import ModelConfig, ParallelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.tp_overlap import ColumnOverlap, ProductOverlap, RowOverlap, TPOverlapConfig
from primus.engine.parallel.mesh import Mesh, build_mesh, single_mesh

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
