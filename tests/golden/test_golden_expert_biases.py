"""Experts and routers with biases, behind a clamped gate: every layout equals one process in float64."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
MODEL: Keys = {
    "num_layers": 2,
    "num_experts": 4,
    "moe_ffn_hidden_size": 16,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
    "moe_token_dispatcher_type": "alltoall",
    "add_bias_linear": True,
    "swiglu": False,
    "quick_geglu": True,
    "activation_func_clamp_value": 0.5,
    "glu_linear_offset": 1.0,
    "init_method_std": 0.3,
    "train_iters": 3,
    "lr": 0.05,
}
ETP1: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
EP2: Keys = {"expert_model_parallel_size": 2}
LAYOUTS: dict[str, tuple[int, Keys]] = {"tp2-ep2": (2, {**ETP1, **EP2}), "ep2-zero3": (2, {**EP2, **ZERO3})}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("alone"), "one", MODEL, change=in_float64)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout: str, alone: list[dict[str, Any]], tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    assert_equal(train(tmp_path, "many", {**MODEL, **keys}, ranks=ranks, change=in_float64), alone, 1e-12)


@pytest.mark.parametrize("key", ["add_bias_linear", "activation_func_clamp_value", "glu_linear_offset"])
def test_each_key_changes_the_curve(key: str, alone: list[dict[str, Any]], tmp_path: Path) -> None:
    off = {"add_bias_linear": False, "activation_func_clamp_value": None, "glu_linear_offset": 0.0}
    other = train(tmp_path, "other", {**MODEL, key: off[key]}, change=in_float64)
    assert other[-1]["lm_loss"] != pytest.approx(alone[-1]["lm_loss"], rel=1e-6)
