"""torch's `fully_shard` trains to the numbers of one process, resumes to the bit, and its checkpoints go on elsewhere."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train
from test_golden_layouts import MODELS, assert_equal, in_float64
from test_golden_resharding import LAYOUTS as OTHERS

from primus.engine.config import ConfigContainer
from primus.engine.parallel.buckets import Unit
from primus.engine.parallel.fsdp2 import FullyShardedDataParallel
from primus.engine.parallel.mesh import build_mesh, single_mesh
from primus.engine.train.assemble import assemble
from primus.errors import InputError

pytestmark = pytest.mark.slow  # several whole runs each

FSDP2: dict[str, Any] = {"use_torch_fsdp2": True}
MODEL: dict[str, Any] = {**MODELS["llama"], "num_layers": 4, "train_iters": 3}
FULL: dict[str, Any] = {"recompute_granularity": "full", "recompute_num_layers": 2, "recompute_method": "uniform"}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {}),
    "dp4": (4, {}),
    "tp2_dp2": (4, {"tensor_model_parallel_size": 2}),
    "cp2": (2, {"context_parallel_size": 2}),
    "two_instances": (4, {"num_distributed_optimizer_instances": 2}),
    "per_token": (2, {"calculate_per_token_loss": True}),
    "microbatches": (2, {"micro_batch_size": 1}),
    "recomputed": (2, FULL),
    "selective": (2, {"recompute_granularity": "selective"}),
    "meta": (2, {"init_model_with_meta_device": True}),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("reference")
    rows = {
        per_token: train(folder, f"{per_token}", {**MODEL, "calculate_per_token_loss": per_token}, change=in_float64)
        for per_token in (False, True)
    }
    return lambda keys: rows[keys.get("calculate_per_token_loss", False)]


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_fully_sharded_trains_like_one_process_in_float64(layout: str, reference: Any, tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    rows = train(tmp_path, "run", {**MODEL, **FSDP2, **keys}, ranks=ranks, change=in_float64)
    assert_equal(rows, reference(keys), 1e-12)


@pytest.mark.parametrize("ckpt_format", ["torch_dist", "torch"])
def test_a_bf16_run_resumes_to_the_bit(ckpt_format: str, tmp_path: Path) -> None:
    keys = {**MODEL, **FSDP2, "bf16": True, "train_iters": 4, "ckpt_format": ckpt_format}
    straight = train(tmp_path, "straight", keys, ranks=2)
    keys |= {"save": "ckpt", "save_interval": 2, "auto_continue_train": True}
    train(tmp_path, "cut", {**keys, "exit_interval": 2}, ranks=2)
    resumed = train(tmp_path, "cut", keys, ranks=2)
    assert [(r["lm_loss"], r["grad_norm"]) for r in resumed] == [(r["lm_loss"], r["grad_norm"]) for r in straight]


@pytest.mark.parametrize("direction", ["to_tp2_pp2", "from_tp2_pp2"])
def test_a_checkpoint_moves_between_fully_sharded_and_pipelines(direction: str, reference: Any, tmp_path: Path) -> None:
    layouts = [(2, FSDP2), OTHERS["tp2_pp2"]]
    (ranks, first), (others, second) = layouts if direction == "to_tp2_pp2" else layouts[::-1]
    save = {"save": "ckpt", "save_interval": 2, "exit_interval": 2}
    train(tmp_path, "first", {**MODEL, **first, **save}, ranks=ranks, change=in_float64)
    load = {"load": str(tmp_path / "g" / "u" / "first" / "ckpt")}
    rows = train(tmp_path, "second", {**MODEL, **second, **load}, ranks=others, change=in_float64)
    assert_equal(rows, reference({})[2:], 1e-12)


def holding_rank(_rank: int, config: ConfigContainer) -> tuple[int, int, int, int]:
    """Return the elements of the model, and what this rank holds of weights, of parameters and of gradients."""
    mesh = build_mesh(config.model.parallel, config.dist, torch.device("cpu"))
    parts = assemble(config, mesh, None)
    assert parts.trainer is not None
    buffers, (chunk,) = parts.trainer.buffers, parts.chunks
    assert isinstance(buffers, FullyShardedDataParallel)
    tokens = torch.zeros(1, config.model.seq_length, dtype=torch.int64)
    ones = torch.ones(1, config.model.seq_length)
    chunk(tokens, torch.arange(config.model.seq_length)[None], None, tokens, ones).backward()
    buffers.finish_grad_sync()
    held = sum(p.detach().to_local().untyped_storage().nbytes() // p.element_size() for p in chunk.parameters())
    ranges = buffers.ranges()
    assert all(p.grad is None for p in chunk.parameters())
    assert any(r.grad.any() for r in ranges)
    weights, gradients = sum(r.model.numel() for r in ranges), sum(r.grad.numel() for r in ranges)
    return sum(p.numel() for p in chunk.parameters()), weights, held, gradients


def test_a_rank_holds_its_rows_alone_after_a_step(tmp_path: Path) -> None:
    config = build_container(tmp_path, "run", 2, {**MODEL, **FSDP2, "vocab_size": 96})
    config = replace(config, model=replace(config.model, vocab_size=96))
    for whole, weights, held, gradients in run_ranks(holding_rank, 2, config):
        assert weights == held == gradients == whole // 2


def test_weights_of_two_dtypes_in_a_layer_are_refused() -> None:
    layer = torch.nn.Linear(4, 3).to(torch.bfloat16)
    layer.bias.data = layer.bias.data.float()
    with pytest.raises(InputError, match=r"most are .*, and .* is torch\.float32\. use_megatron_fsdp: true"):
        FullyShardedDataParallel(layer, [Unit(modules=(layer,))], single_mesh(), grad_dtype=torch.float32, per_token=False)
