"""Two expert-parallel ranks train as Megatron-Core's two, and as one process: losses, norms, clipping, final weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file
from torch import Tensor

from primus.engine.config import (
    AttentionConfig,
    DDPConfig,
    DistConfig,
    MixedPrecisionConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PositionConfig,
    SchedulerConfig,
)
from primus.engine.config.moe import MoEConfig
from primus.engine.model.builder import build_model
from primus.engine.optim import build_optimizer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import build_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import sharding_of, slice_global

DATA = Path(__file__).parents[2] / "data" / "distributed"
CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=24,
    ffn_hidden_size=32,
    seq_length=16,
    vocab_size=64,
    make_vocab_size_divisible_by=1,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=4, kv_channels=6),
    position=PositionConfig(max_position_embeddings=64),
    moe=MoEConfig(
        num_experts=4,
        layers=(0, 1),
        ffn_hidden_size=16,
        shared_expert_intermediate_size=16,
        router_topk=2,
        router_load_balancing_type=("none",),
        token_dispatcher="alltoall",
    ),
)


def read(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((DATA / f"{name}.json").read_text()), load_file(DATA / f"{name}.safetensors")


def stacked(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return weights under our names: an expert's matrix is a part of a stack."""
    experts: dict[str, list[Tensor]] = {}
    plain = {}
    for name, tensor in sorted(tensors.items()):
        if not name.startswith(prefix):
            continue
        before, _, after = name.removeprefix(prefix).partition("local_experts.")
        if after:
            experts.setdefault(before + after.split(".", 1)[1], []).append(tensor)
        else:
            plain[before] = tensor
    return plain | {name: torch.stack(parts) for name, parts in experts.items()}


def train(rank: int, size: int, shards_state: bool) -> tuple[list[float], list[float | None]]:
    description, tensors = read("moe_single" if size == 1 else f"moe_ep2_rank{rank}")
    parallel = ParallelConfig(expert_model_parallel_size=size)
    mesh = build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(CONFIG, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    ddp = DDPConfig(use_distributed_optimizer=shards_state)
    buffers = GradientBuffers([model], ddp, mesh, grad_dtype=torch.float32, per_token=False)
    keys = description["flat_keys"]
    scheduler = SchedulerConfig(
        lr_decay_style=keys["lr_decay_style"],
        lr_decay_steps=keys["lr_decay_iters"],
        start_weight_decay=keys["weight_decay"],
        end_weight_decay=keys["weight_decay"],
        weight_decay_incr_steps=20,
    )
    config = OptimizerConfig(lr=keys["lr"], min_lr=keys["min_lr"], adam_beta2=keys["adam_beta2"], clip_grad=keys["clip_grad"])
    optimizer = build_optimizer(
        config, MixedPrecisionConfig(params_dtype="float32"), scheduler=scheduler, buffers=buffers, mesh=mesh
    )
    start = stacked(tensors, "w0/")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(start[name])
    optimizer.reload_model_params()
    sums, norms = [], []
    for _ in description["iterations"]:
        buffers.zero_grad()
        for microbatch in range(2):
            ids, labels, mask = (tensors[f"batch/{microbatch}/{key}"] for key in ("input_ids", "labels", "loss_mask"))
            total = model(ids, torch.arange(16).expand(2, 16), None, labels, mask)
            (total / mask.sum() / 2).backward()
            sums.append(total.item())
        buffers.finish_grad_sync()
        norms.append(optimizer.step().grad_norm)
        optimizer.advance_schedule(1)
    buffers.finish_param_gather()
    end = stacked(read("moe_single")[1], "w_end/")
    for name, parameter in model.named_parameters():
        expected = slice_global(end[name], sharding_of(parameter), mesh)
        torch.testing.assert_close(parameter.detach(), expected, **description["tolerance"]["w_end"], msg=name)
    return sums, norms


@pytest.mark.parametrize(("size", "shards_state"), [(1, False), (2, False), (2, True)])
def test_training_follows_megatron_core(size: int, shards_state: bool) -> None:
    for rank, (sums, norms) in enumerate(run_ranks(train, size, size, shards_state)):
        description, _ = read("moe_single" if size == 1 else f"moe_ep2_rank{rank}")
        expected = [value for iteration in description["iterations"] for value in iteration["microbatch_loss_sum"]]
        assert sums == pytest.approx(expected, rel=1e-5)
        assert norms == pytest.approx([iteration["grad_norm"] for iteration in description["iterations"]], rel=1e-4)
