"""State-space models, hybrids and uneven layers on every kind of layout equal one process in float64."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
HYBRID: Keys = {
    "num_layers": 4,
    "model_type": "mamba",
    "is_hybrid_model": True,
    "hybrid_override_pattern": "M*-M",
    "mamba_state_dim": 5,
    "mamba_head_dim": 8,
    "mamba_num_groups": 4,
}
EXPERTS: Keys = {**HYBRID, "hybrid_override_pattern": "MEM*", "num_experts": 4, "moe_ffn_hidden_size": 16}
SHORT: Keys = {"lfm_layer_types": ["conv", "full_attention"], "add_bias_linear": True}
DELTA: Keys = {
    "experimental_attention_variant": "gated_delta_net",
    "linear_attention_freq": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
}
KIMI: Keys = {**DELTA, "experimental_attention_variant": "kimi_delta_attention"}
UNEVEN: Keys = {
    "num_layers": 4,
    "add_bias_linear": True,
    "heterogeneous_layers_config_path": str(Path(__file__).parents[1] / "data/megatron/uneven_layers.json"),
}
MODELS: dict[str, Keys] = {
    name: {**keys, "init_method_std": 0.2, "train_iters": 2}
    for name, keys in {
        "hybrid": HYBRID,
        "experts": EXPERTS,
        "short": SHORT,
        "delta": DELTA,
        "kimi": KIMI,
        "uneven": UNEVEN,
    }.items()
}

TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
LAYOUTS: dict[str, tuple[str, int, Keys]] = {
    "tp2": ("hybrid", 2, {**TP2, "sequence_parallel": False}),
    "tp2-sp-recomputed": ("hybrid", 2, {**TP2, **FULL}),
    "zero3": ("hybrid", 2, ZERO3),
    "pp2-zero-bubble": ("hybrid", 2, {"pipeline_model_parallel_size": 2, "patch_zero_bubble": True}),
    "short-tp2-sp": ("short", 2, TP2),
    "delta-tp2-sp": ("delta", 2, TP2),
    "kimi-tp2": ("kimi", 2, {**TP2, "sequence_parallel": False}),
    "kimi-tp2-sp-recomputed": ("kimi", 2, {**TP2, **FULL}),
    "kimi-pp2": ("kimi", 2, {"pipeline_model_parallel_size": 2}),
    "ep2": ("experts", 2, {"expert_model_parallel_size": 2}),
    "uneven-tp2": ("uneven", 2, {**TP2, "sequence_parallel": False}),
    "uneven-tp2-sp-pp2": ("uneven", 4, {**TP2, "pipeline_model_parallel_size": 2}),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: train(folder, name, keys, change=in_float64) for name, keys in MODELS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_one_process(layout: str, alone: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    model, ranks, keys = LAYOUTS[layout]
    assert_equal(train(tmp_path, "run", {**MODELS[model], **keys}, ranks=ranks, change=in_float64), alone[model], 1e-12)


def test_each_model_is_another(alone: dict[str, list[dict[str, Any]]]) -> None:
    assert len({rows[-1]["lm_loss"] for rows in alone.values()}) == len(MODELS)
