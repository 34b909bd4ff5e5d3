"""Sparse models on every kind of layout equal one process in float64: losses of tokens and routers, norms, evaluations."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
MODEL: Keys = {
    "num_layers": 4,
    "num_experts": 4,
    "moe_layer_freq": "([0]+[1]*3)",
    "moe_ffn_hidden_size": 16,
    "moe_shared_expert_intermediate_size": 8,
    "moe_shared_expert_gate": True,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"],
    "moe_aux_loss_coeff": [0.01, 0.02],
    "moe_z_loss_coeff": 1e-3,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "moe_token_dispatcher_type": "alltoall",
    "init_method_std": 0.2,
    "train_iters": 3,
    "eval_iters": 1,
}
LOSSES = ("load_balancing_loss", "seq_load_balancing_loss", "z_loss")
EP2: Keys = {"expert_model_parallel_size": 2}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
ETP1: Keys = {"expert_tensor_parallel_size": 1}
CP2: Keys = {"context_parallel_size": 2}
PP2: Keys = {"pipeline_model_parallel_size": 2}
FLEX: Keys = {"moe_token_dispatcher_type": "flex"}
GATHER: Keys = {"moe_token_dispatcher_type": "allgather"}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "overlap_grad_reduce": True}
OVERLAP: Keys = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_num_buckets": 4}
ZB: Keys = {"patch_zero_bubble": True}

LAYOUTS: dict[str, tuple[int, Keys]] = {
    "dp2": (2, {"use_distributed_optimizer": False}),
    "dp2-overlapped": (2, OVERLAP),
    "ep2": (2, {**EP2, "moe_shared_expert_overlap": True}),
    "ep2-zero3": (4, {**EP2, **ZERO3, **FLEX}),
    "ep2-overlapped-full": (4, {**EP2, **OVERLAP, **FULL, **GATHER}),
    "tp2-ep2": (4, {**TP2, **EP2}),
    "tp2-etp1-ep2": (2, {**TP2, **ETP1, **EP2, **GATHER}),
    "cp2-ep2": (2, {**CP2, **EP2, **FLEX}),
    "cp2-tp2": (4, {**CP2, **TP2, **ETP1}),
    "pp2-ep2": (4, {**PP2, **EP2}),
    "zero-bubble-ep2": (4, {**PP2, **EP2, **ZB}),
    "ep2-recomputed": (2, {**EP2, "moe_layer_recompute": True}),
    "per-token-ep2": (2, {**EP2, "calculate_per_token_loss": True}),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("alone"), "one", MODEL, change=in_float64)


@pytest.fixture(scope="module")
def alone_per_token(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("per-token")
    return train(folder, "one", {**MODEL, "calculate_per_token_loss": True}, change=in_float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(
    layout: str, alone: list[dict[str, Any]], alone_per_token: list[dict[str, Any]], tmp_path: Path
) -> None:
    ranks, keys = LAYOUTS[layout]
    rows = train(tmp_path, "many", {**MODEL, **keys}, ranks=ranks, change=in_float64)
    reference = alone_per_token if "calculate_per_token_loss" in keys else alone
    assert len(rows) == len(reference) == 4, "three steps and an evaluation"
    for row, expected in zip(rows, reference, strict=True):
        names = [name for name in expected if name.endswith("_loss") or name == "grad_norm"]
        assert {name: row[name] for name in names} == pytest.approx({name: expected[name] for name in names}, rel=1e-12)
    assert set(LOSSES) < set(reference[0])
