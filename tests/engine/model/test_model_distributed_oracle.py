"""Two tensor-parallel ranks equal Megatron-Core's: the shard layout, and three AdamW steps (losses, norms, final weights)."""

import json
from pathlib import Path
from typing import Any

import torch
from ranks import run_ranks
from safetensors.torch import load_file
from torch import Tensor, nn

from primus.engine.config import DistConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh, build_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import sharding_of, slice_global

FOLDER = Path(__file__).parents[2] / "data" / "distributed"


def read(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    path = FOLDER / name
    return json.loads(path.with_suffix(".json").read_text()), load_file(path.with_suffix(".safetensors"))


def build(tensor_parallel: int) -> tuple[GPTModel, Mesh]:
    config = ModelConfig(
        num_layers=2,
        hidden_size=32,
        ffn_hidden_size=48,
        seq_length=16,
        vocab_size=96,
        make_vocab_size_divisible_by=1,
        attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=8),
        position=PositionConfig(max_position_embeddings=64),
        init=InitConfig(perform=False),
        parallel=ParallelConfig(tensor_model_parallel_size=tensor_parallel),
    )
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    return model, mesh


def grad_norm(model: GPTModel, mesh: Mesh) -> float:
    split, replicated = torch.zeros(()), torch.zeros(())
    for parameter in model.parameters():
        assert parameter.grad is not None
        (replicated if sharding_of(parameter).dim is None else split).add_(parameter.grad.square().sum())
    return float((all_reduce_(split, mesh.tp) + replicated).sqrt())


def decayed(parameter: nn.Parameter) -> bool:
    return parameter.dim() > 1


def train(rank: int, tensor_parallel: int) -> dict[str, Any]:
    description, tensors = read("dense_single" if tensor_parallel == 1 else f"dense_tp2_rank{rank}")
    _, whole = read("dense_single")
    model, mesh = build(tensor_parallel)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"w0/{name}"])
            assert torch.equal(parameter, slice_global(whole[f"w0/{name}"], sharding_of(parameter), mesh)), name
    groups = [
        {"params": [p for p in parameters.values() if decayed(p)], "weight_decay": 0.1},
        {"params": [p for p in parameters.values() if not decayed(p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    sums, norms = [], []
    for iteration in description["iterations"]:
        optimizer.zero_grad()
        for microbatch in range(2):
            tokens, labels, mask = (tensors[f"batch/{microbatch}/{key}"] for key in ("input_ids", "labels", "loss_mask"))
            total = model(tokens, torch.arange(16).expand(2, 16), labels_BS=labels, loss_mask_BS=mask)
            (total / mask.sum() / 2).backward()
            sums.append(total.item())
        norms.append(grad_norm(model, mesh))
        for parameter in parameters.values():
            assert parameter.grad is not None
            parameter.grad.mul_(min(1.0, 1.0 / (norms[-1] + 1e-6)))
        for group in optimizer.param_groups:
            group["lr"] = iteration["lr"]
        optimizer.step()
    for name, parameter in parameters.items():
        expected = slice_global(whole[f"w_end/{name}"], sharding_of(parameter), mesh)
        torch.testing.assert_close(parameter.detach(), expected, **description["tolerance"]["w_end"])
    return {"sums": sums, "norms": norms}


def check(tensor_parallel: int) -> None:
    for rank, result in enumerate(run_ranks(train, tensor_parallel, tensor_parallel)):
        description, _ = read("dense_single" if tensor_parallel == 1 else f"dense_tp2_rank{rank}")
        sums = [value for iteration in description["iterations"] for value in iteration["microbatch_loss_sum"]]
        norms = [iteration["grad_norm"] for iteration in description["iterations"]]
        torch.testing.assert_close(torch.tensor(result["sums"]), torch.tensor(sums), rtol=1e-5, atol=0)
        torch.testing.assert_close(torch.tensor(result["norms"]), torch.tensor(norms), rtol=1e-4, atol=0)


def test_one_process_trains_as_megatron_core() -> None:
    check(1)


def test_two_tensor_parallel_ranks_train_as_megatron_core() -> None:
    check(2)
