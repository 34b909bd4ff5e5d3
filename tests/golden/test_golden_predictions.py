"""Prediction of tokens further ahead equals one process on every kind of layout, in float64: all losses, norms, evaluations."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
MODEL: Keys = {"mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.5, "init_method_std": 0.2, "train_iters": 3, "eval_iters": 1}
TIED: Keys = {"untie_embeddings_and_output_weights": False}
EXPERTS: Keys = {
    "num_experts": 4,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "moe_aux_loss_coeff": 0.01,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_token_dispatcher_type": "alltoall",
}
PACKED: Keys = {"reset_attention_mask": True}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
WHOLE: Keys = {**TP2, "sequence_parallel": False, "distribute_saved_activations": True}
CP2: Keys = {"context_parallel_size": 2}
PP2: Keys = {"pipeline_model_parallel_size": 2}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "overlap_grad_reduce": True}
OVERLAP: Keys = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_num_buckets": 3}

LAYOUTS: dict[str, tuple[str, int, Keys]] = {
    "dp2": ("per-token", 2, OVERLAP),
    "zero3": ("tied", 2, ZERO3),
    "tp2-full": ("tied", 2, {**WHOLE, **FULL}),
    "cp2": ("packed", 2, CP2),
    "pp2": ("tied", 2, PP2),
    "tp2-pp2-zero-bubble": ("untied", 4, {**TP2, **PP2, "patch_zero_bubble": True}),
    "pp2-ep2": ("experts", 4, {**PP2, "expert_model_parallel_size": 2}),
}
KINDS: dict[str, Keys] = {
    "untied": {},
    "tied": TIED,
    "packed": PACKED,
    "per-token": {"calculate_per_token_loss": True},
    "experts": EXPERTS,
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: train(folder, name, {**MODEL, **keys}, change=in_float64) for name, keys in KINDS.items()}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout: str, alone: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    kind, ranks, keys = LAYOUTS[layout]
    rows = train(tmp_path, "many", {**MODEL, **KINDS[kind], **keys}, ranks=ranks, change=in_float64)
    assert len(rows) == len(alone[kind]) == 4, "three steps and an evaluation"
    for row, expected in zip(rows, alone[kind], strict=True):
        names = [name for name in expected if name.endswith("_loss") or name == "grad_norm"]
        assert {name: row[name] for name in names} == pytest.approx({name: expected[name] for name in names}, rel=1e-12)
    assert {"mtp_1_loss", "mtp_2_loss"} < set(rows[0])


def test_the_factor_weighs_the_losses(alone: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    none = train(tmp_path, "none", {**MODEL, "mtp_loss_scaling_factor": 0.0}, change=in_float64)
    plain = train(tmp_path, "plain", {**MODEL, "mtp_num_layers": None}, change=in_float64)
    for ours, theirs, weighed in zip(none, plain, alone["untied"], strict=True):
        for name in {"lm_loss", "grad_norm", "validation_loss"} & set(ours):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-12), "layers without a weight change nothing"
        if weighed["iteration"] > 1:
            assert weighed.get("lm_loss") != ours.get("lm_loss") or weighed["validation_loss"] != ours["validation_loss"]


def test_a_checkpoint_of_two_stages_goes_on_in_one_process(alone: dict[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    saving = {**MODEL, "save": "checkpoints", "auto_continue_train": True}
    train(tmp_path, "run", {**saving, **PP2, "exit_interval": 2}, ranks=2, change=in_float64)
    rows = train(tmp_path, "run", saving, change=in_float64)
    ours, theirs = (next(row for row in each if row["iteration"] == 3 and "lm_loss" in row) for each in (rows, alone["untied"]))
    for name in ("lm_loss", "mtp_1_loss", "mtp_2_loss"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-12)
