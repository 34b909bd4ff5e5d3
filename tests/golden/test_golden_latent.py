"""Latent attention on every kind of layout equals one process in float64, alone and with the experts of a DeepSeek-V3."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
MODEL: Keys = {
    "num_layers": 4,
    "multi_latent_attention": True,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_head_dim": 8,
    "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6,
    "qk_layernorm": True,
    "rope_type": "yarn",
    "rotary_scaling_factor": 4.0,
    "original_max_position_embeddings": 16,
    "init_method_std": 0.2,
    "train_iters": 2,
}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
CP2: Keys = {"context_parallel_size": 2}
PP2: Keys = {"pipeline_model_parallel_size": 2}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
OVERLAP: Keys = {"tp_comm_overlap": True, "deterministic_mode": False}

DEEPSEEK: Keys = {
    **MODEL,
    "num_experts": 8,
    "moe_layer_freq": "([0]+[1]*3)",
    "moe_ffn_hidden_size": 12,
    "moe_shared_expert_intermediate_size": 12,
    "moe_router_topk": 4,
    "moe_router_num_groups": 4,
    "moe_router_group_topk": 2,
    "moe_router_topk_scaling_factor": 2.5,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_aux_loss_coeff": 0.01,
    "moe_token_dispatcher_type": "alltoall",
}

LAYOUTS: dict[str, tuple[int, Keys]] = {
    "tp2": (2, {**TP2, "sequence_parallel": False, "q_lora_rank": None}),
    "tp2-sp-overlap": (2, {**TP2, **OVERLAP}),
    "tp2-sp-zero3": (4, {**TP2, **ZERO3, **FULL}),
    "cp2-ring": (2, CP2),
    "cp2-ring-scores": (2, {**CP2, "use_sink_attention": True, "sink_sliding_window": 5, "attn_logit_softcapping": 2.0}),
    "cp2-a2a": (2, {**CP2, "cp_comm_type": "a2a", "v_head_dim": 20}),
    "cp2-allgather-tp2": (4, {**CP2, **TP2, "cp_comm_type": "allgather"}),
    "pp2-zero-bubble": (2, {**PP2, "patch_zero_bubble": True}),
    "pp2-slices": (2, {**PP2, "patch_zero_bubble": True, "num_seq_splits": 2}),
    "selective": (1, {"recompute_granularity": "selective", "attention_backend": "unfused"}),
}
OF_MODEL = ("q_lora_rank", "v_head_dim", "use_sink_attention", "sink_sliding_window", "attn_logit_softcapping")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    folder, runs = tmp_path_factory.mktemp("alone"), dict[tuple[Any, ...], list[dict[str, Any]]]()
    for _, keys in LAYOUTS.values():
        model = {key: keys[key] for key in OF_MODEL if key in keys}
        name = tuple(model.items())
        if name not in runs:
            runs[name] = train(folder, f"one-{len(runs)}", {**MODEL, **model}, change=in_float64)
    return runs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout: str, alone: dict[tuple[Any, ...], list[dict[str, Any]]], tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    rows = train(tmp_path, "many", {**MODEL, **keys}, ranks=ranks, change=in_float64)
    assert_equal(rows, alone[tuple((key, keys[key]) for key in OF_MODEL if key in keys)], 1e-12)


def test_a_small_deepseek_equals_one_process(tmp_path: Path) -> None:
    layout = {**TP2, **CP2, "expert_tensor_parallel_size": 1, "expert_model_parallel_size": 4}
    alone = train(tmp_path, "one", DEEPSEEK, change=in_float64)
    rows = train(tmp_path, "many", {**DEEPSEEK, **layout}, ranks=4, change=in_float64)
    assert_equal(rows, alone, 1e-12)
    balance = [[row["seq_load_balancing_loss"] for row in each] for each in (rows, alone)]
    assert balance[0] == pytest.approx(balance[1], rel=1e-12)
