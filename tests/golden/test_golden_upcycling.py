"""A sparse model begins as the dense model that it is made of, on any layout, and goes on from its own checkpoints."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import in_float64

pytestmark = pytest.mark.slow  # whole runs

Keys = dict[str, Any]
SAVE: Keys = {"save": "ckpt", "save_interval": 100}
WHOLE: Keys = {"num_experts": 4, "moe_use_upcycling": True, "moe_router_topk": 2}
SLICED: Keys = {**WHOLE, "moe_ffn_hidden_size": 32}
SQUARED: Keys = {"swiglu": False, "squared_relu": True}
EP2: Keys = {"expert_model_parallel_size": 2, "moe_token_dispatcher_type": "alltoall"}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
CASES: dict[str, tuple[int, Keys, Keys]] = {
    "copies": (1, {"swiglu": True}, {**WHOLE, "moe_layer_freq": 2}),
    "slices-ep2": (2, {**SQUARED, "add_bias_linear": False}, {**SLICED, **EP2}),
    "slices-zero3": (2, SQUARED, {**SLICED, **ZERO3, "use_distributed_optimizer": True}),
    "slices-pre-softmax": (1, SQUARED, {**SLICED, "num_experts": 2, "moe_router_pre_softmax": True}),
}
"""Ranks, keys of both models, keys of the sparse one. A squared activation makes slices exact: their scale comes out as G."""


@pytest.mark.parametrize("case", CASES)
def test_a_sparse_model_begins_as_the_dense_one(case: str, tmp_path: Path) -> None:
    ranks, common, sparse = CASES[case]
    train(tmp_path, "dense", {**common, **SAVE, "train_iters": 2, "lr": 0.01}, change=in_float64)
    source = {**common, "load": str(tmp_path / "g" / "u" / "dense" / "ckpt"), "train_iters": 1}
    tuned = train(tmp_path, "tuned", {**source, "finetune": True}, change=in_float64)
    fresh = train(tmp_path, "fresh", {**common, "train_iters": 1}, change=in_float64)
    made = train(tmp_path, "made", {**source, **sparse, **SAVE}, ranks=ranks, change=in_float64)
    assert made[0]["lm_loss"] == pytest.approx(tuned[0]["lm_loss"], rel=1e-12)
    assert made[0]["lm_loss"] != pytest.approx(fresh[0]["lm_loss"], rel=1e-3)


def test_a_later_start_goes_on_from_the_sparse_model(tmp_path: Path) -> None:
    train(tmp_path, "dense", {**SAVE, "train_iters": 1})
    source = {"load": str(tmp_path / "g" / "u" / "dense" / "ckpt"), **WHOLE, **SAVE, "train_iters": 2}
    straight = train(tmp_path, "straight", source)
    train(tmp_path, "cut", {**source, "exit_interval": 1})
    resumed = train(tmp_path, "cut", {**source, "auto_continue_train": True})
    assert [row["lm_loss"] for row in resumed] == [row["lm_loss"] for row in straight]
    assert [row["iteration"] for row in resumed] == [1, 2]


def test_a_dense_model_in_parts_of_its_ranks_is_refused(tmp_path: Path) -> None:
    train(tmp_path, "dense", {**SAVE, "ckpt_format": "torch", "train_iters": 1})
    keys = {"load": str(tmp_path / "g" / "u" / "dense" / "ckpt"), **WHOLE, **SAVE, "ckpt_format": "torch", "train_iters": 1}
    with pytest.raises(AssertionError, match="moe_use_upcycling reads checkpoints of ckpt_format torch_dist"):
        train(tmp_path, "made", keys)


def test_a_dense_model_of_another_width_is_refused(tmp_path: Path) -> None:
    train(tmp_path, "dense", {**SAVE, "ffn_hidden_size": 32, "train_iters": 1})
    keys = {"load": str(tmp_path / "g" / "u" / "dense" / "ckpt"), **WHOLE, **SAVE, "train_iters": 1}
    with pytest.raises(AssertionError, match=r"experts.linear_fc1.weight has shape \[4, 64, 32\]"):
        train(tmp_path, "made", keys)
