"""Pipelines: every schedule, placement and mixture with other parallelism trains to the losses of one process, in float64."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import train

from primus.engine.config import ConfigContainer

DEEP = {"num_layers": 4}
FOLD = {"num_layers": 4, "patch_primus_pipeline": True}
VIRTUAL = {"num_layers": 4, "num_virtual_stages_per_pipeline_rank": 2}

SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": DEEP,
    "1f1b-by-name": {**FOLD, "pp_algorithm": "1f1b"},
    "interleaved": VIRTUAL,
    "interleaved-groups": {**VIRTUAL, "microbatch_group_size_per_vp_stage": 4},
    "interleaved-by-size": {**DEEP, "num_layers_per_virtual_pipeline_stage": 1},
    "zero-bubble": {**FOLD, "pp_algorithm": "zero-bubble"},
    "heuristic": {**FOLD, "pp_algorithm": "zero-bubble-heuristic", "pp_max_mem": 3, "pp_cost_f": [2, 1]},
    "zbv": {**FOLD, "pp_algorithm": "zbv-formatted"},
    "v-half": {**FOLD, "pp_algorithm": "v-half"},
    "v-min": {**FOLD, "pp_algorithm": "v-min"},
}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "padded": {"num_layers": 3},
    "first": {"num_layers": 4, "decoder_first_pipeline_num_layers": 1},
    "last": {"num_layers": 4, "decoder_last_pipeline_num_layers": 1},
    "accounted": {
        "num_layers": 2,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "layout": {"num_layers": 3, "pipeline_model_parallel_layout": "Et|t||tL"},
    "manual": {"num_layers": 3, "decoder_pipeline_manual_split_list": [1, 2]},
    "standalone": {"num_layers": 2, "standalone_embedding_stage": True},
    "learned-positions": {"num_layers": 2, "position_embedding_type": "learned_absolute", "normalization": "LayerNorm"},
}


def float64(config: ConfigContainer) -> ConfigContainer:
    precision = replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64")
    return replace(config, mixed_precision=precision)


def losses(folder: Path, name: str, keys: dict[str, Any], ranks: int = 1) -> list[float]:
    rows = train(folder, name, {"eval_interval": 2, "eval_iters": 3, **keys}, ranks=ranks, change=float64)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm", "validation_loss") if key in row]


def alone(keys: dict[str, Any]) -> dict[str, Any]:
    """Return what of the keys a single stage has."""
    kept = ("num_layers", "position_embedding_type", "normalization", "untie_embeddings_and_output_weights")
    return {key: value for key, value in keys.items() if key in kept}


def assert_as_alone(folder: Path, keys: dict[str, Any], ranks: int, **other: Any) -> None:
    expected = losses(folder, "alone", {**alone(keys), **{k: v for k, v in other.items() if "parallel" not in k}})
    found = losses(folder, "pipeline", {**keys, "pipeline_model_parallel_size": 2, **other}, ranks)
    assert len(found) > 12
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_trains_as_one_process(tmp_path: Path, schedule: str, tie: bool) -> None:
    keys = {**SCHEDULES[schedule], "untie_embeddings_and_output_weights": not tie}
    assert_as_alone(tmp_path, keys, 2)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_trains_as_one_process(tmp_path: Path, placement: str) -> None:
    assert_as_alone(tmp_path, PLACEMENTS[placement], 2)


OTHERS: dict[str, dict[str, Any]] = {
    "data": {},
    "data-sharded-overlapped": {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "ddp_bucket_size": 2000,
    },
    "tensor": {"tensor_model_parallel_size": 2},
    "tensor-sequence": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "waiting": {"overlap_p2p_comm": False, "communication_method": "batch_p2p"},
    "other-order": {"use_tp_pp_dp_mapping": True},
    "per-token": {"calculate_per_token_loss": True},
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble", "v-half"])
def test_pipelines_mix_with_other_parallelism(tmp_path: Path, schedule: str, other: str) -> None:
    keys = {**SCHEDULES[schedule], "untie_embeddings_and_output_weights": False}
    assert_as_alone(tmp_path, keys, 4, **OTHERS[other])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_four_ranks_deep(tmp_path: Path, schedule: str) -> None:
    keys = {**SCHEDULES[schedule], "num_layers": 8, "pp_cost_f": None, "untie_embeddings_and_output_weights": False}
    if schedule == "interleaved-by-size":
        keys["num_layers_per_virtual_pipeline_stage"] = 1
    assert_as_alone(tmp_path, keys, 4, pipeline_model_parallel_size=4)
