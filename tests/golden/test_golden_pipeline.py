"""Pipelines: every schedule, placement and mixture with other parallelism trains to the losses of one process, in float64."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, logged_rank, train

from primus.engine.config import ConfigContainer

DEEP = {"num_layers": 4}
FOLD = {"num_layers": 4, "patch_primus_pipeline": True}
VIRTUAL = {"num_layers": 4, "num_virtual_stages_per_pipeline_rank": 2}

SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": DEEP,
    "1f1b-by-name": {**FOLD, "pp_algorithm": "1f1b"},
    "interleaved": VIRTUAL,
    "interleaved-groups": {**VIRTUAL, "microbatch_group_size_per_vp_stage": 4, "micro_batch_size": 1},
    "interleaved-by-size": {**DEEP, "num_layers_per_virtual_pipeline_stage": 1},
    "zero-bubble": {**FOLD, "pp_algorithm": "zero-bubble"},
    "heuristic": {**FOLD, "pp_algorithm": "zero-bubble-heuristic", "pp_max_mem": 3, "pp_cost_f": [2, 1]},
    "zbv": {**FOLD, "pp_algorithm": "zbv-formatted"},
    "v-half": {**FOLD, "pp_algorithm": "v-half"},
    "v-min": {**FOLD, "pp_algorithm": "v-min"},
    "zb-v": {**DEEP, "patch_zero_bubble": True, "zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "zb"},
    "zb-1f1b": {**DEEP, "patch_zero_bubble": True, "enable_zero_bubble": False},
    "1f1b-v": {**DEEP, "patch_zero_bubble": True, "enable_zero_bubble": False, "enable_1f1b_v": True},
    "group-interleaved": {**VIRTUAL, "patch_zero_bubble": True, "enable_zero_bubble": False},
    "small-groups": {**VIRTUAL, "patch_zero_bubble": True, "enable_zero_bubble": False, "interleave_group_size": 1},
    "zb-timed": {
        **DEEP,
        "patch_zero_bubble": True,
        "zero_bubble_pipeline_timers_start_iter": 1,
        "zero_bubble_pipeline_timers_end_iter": 2,
    },
    "zb2p-timed": {
        **DEEP,
        "patch_zero_bubble": True,
        "zero_bubble_pipeline_timers_start_iter": 1,
        "zero_bubble_pipeline_timers_end_iter": 1,
        "zero_bubble_max_pending_backward": 4,
    },
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
    rows = train(folder, name, {"train_iters": 3, "eval_interval": 2, "eval_iters": 2, **keys}, ranks=ranks, change=float64)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm", "validation_loss") if key in row]


def alone(keys: dict[str, Any]) -> dict[str, Any]:
    """Return what of the keys a single stage has."""
    kept = ("num_layers", "position_embedding_type", "normalization", "untie_embeddings_and_output_weights")
    return {key: value for key, value in keys.items() if key in kept}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], list[float]]:
    """Return a function that gives the numbers of one process; equal keys are trained once."""
    folder, results = tmp_path_factory.mktemp("alone"), dict[str, list[float]]()

    def numbers(keys: dict[str, Any]) -> list[float]:
        name = json.dumps(keys, sort_keys=True)
        if name not in results:
            results[name] = losses(folder, f"run{len(results)}", keys)
        return results[name]

    return numbers


def assert_as_alone(known: Any, folder: Path, keys: dict[str, Any], ranks: int, **other: Any) -> None:
    expected = known({**alone(keys), **{k: v for k, v in other.items() if k == "calculate_per_token_loss"}})
    found = losses(folder, "pipeline", {**keys, "pipeline_model_parallel_size": 2, **other}, ranks)
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_trains_as_one_process(tmp_path: Path, known: Any, schedule: str, tie: bool) -> None:
    keys = {**SCHEDULES[schedule], "untie_embeddings_and_output_weights": not tie}
    assert_as_alone(known, tmp_path, keys, 2)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_trains_as_one_process(tmp_path: Path, known: Any, placement: str) -> None:
    assert_as_alone(known, tmp_path, PLACEMENTS[placement], 2)


OTHERS: dict[str, dict[str, Any]] = {
    "data": {},
    "data-sharded-overlapped": {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "ddp_bucket_size": 2000,
    },
    "tensor": {"tensor_model_parallel_size": 2, "sequence_parallel": False},
    "tensor-sequence": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "waiting": {"overlap_p2p_comm": False, "communication_method": "batch_p2p"},
    "whole-messages": {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": False,
        "scatter_gather_tensors_in_pipeline": False,
    },
    "knocking": {"pre_communication_optimization": True},
    "other-order": {"use_tp_pp_dp_mapping": True},
    "per-token": {"calculate_per_token_loss": True},
}


SIMPLE, LATE = ("1f1b", "zero-bubble"), ("interleaved", "v-half")
"""Of each kind one whose backwards are whole and one that sets weight gradients aside."""
MIXED = [(schedule, other) for i, other in enumerate(OTHERS) for schedule in (SIMPLE, LATE)[i % 2]]


@pytest.mark.parametrize(
    ("schedule", "other"), [*MIXED, ("v-half", "data-sharded-overlapped"), ("interleaved", "tensor-sequence")]
)
def test_pipelines_mix_with_other_parallelism(tmp_path: Path, known: Any, schedule: str, other: str) -> None:
    keys = {**SCHEDULES[schedule], "untie_embeddings_and_output_weights": False}
    assert_as_alone(known, tmp_path, keys, 4, **OTHERS[other])


@pytest.mark.parametrize(
    "schedule", [name for name in SCHEDULES if name not in ("1f1b-by-name", "interleaved-by-size", "zb-v", "zb-1f1b")]
)
def test_four_ranks_deep(tmp_path: Path, known: Any, schedule: str) -> None:
    keys = {**SCHEDULES[schedule], "num_layers": 8, "pp_cost_f": None, "untie_embeddings_and_output_weights": False}
    assert_as_alone(known, tmp_path, keys, 4, pipeline_model_parallel_size=4)


def test_a_warm_up_changes_nothing(tmp_path: Path) -> None:
    """Not even dropout, which draws from the same generators."""
    keys = {**VIRTUAL, "pipeline_model_parallel_size": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1}
    assert losses(tmp_path, "warm", {**keys, "pp_warmup": True}, 2) == losses(tmp_path, "cold", keys, 2)


def test_times_of_every_operation_are_written(tmp_path: Path) -> None:
    keys = {**FOLD, "pp_algorithm": "v-half", "pipeline_model_parallel_size": 2, "dump_pp_data": True, "train_iters": 2}
    train(tmp_path, "run", keys, ranks=4)
    folder = tmp_path / "g" / "u" / "run" / "pp_data"
    facts = json.loads((folder / "config.json").read_text())
    assert facts == {
        "world_size": 4,
        "dp_size": 2,
        "tp_size": 1,
        "ep_size": 1,
        "pp_size": 2,
        "vp_size": 2,
        "num_mbs": 4,
        "train_iters": 2,
    }
    assert {file.name for file in folder.glob("pp_rank_*")} == {"pp_rank_0.json", "pp_rank_2.json"}
    for file in folder.glob("pp_rank_*"):
        steps = json.loads(file.read_text())
        assert list(steps) == ["1", "2"]
        for name in ("fwd", "bwd", "wgrad"):
            units = sorted(zip(steps["2"][f"{name}_minibatch"], steps["2"][f"{name}_chunk"], strict=True))
            assert units == [(m, chunk) for m in range(4) for chunk in range(2)]
            spans = zip(steps["2"][f"{name}_start"], steps["2"][f"{name}_end"], strict=True)
            assert all(0 <= start < end <= steps["2"]["total"] for start, end in spans)


def test_the_table_is_printed_once(tmp_path: Path) -> None:
    first, second = said(tmp_path, {**DEEP, "debug_scheduler_table": True})
    assert first.count("(F|0|0) (B|0|0)") == 1
    assert "(F|0|0)" not in second


def test_the_schedule_made_from_times_is_said(tmp_path: Path) -> None:
    assert "the schedule is made anew from steps 1 to 1" in said(tmp_path, SCHEDULES["zb2p-timed"])[0]


def said(folder: Path, keys: dict[str, Any]) -> list[str]:
    """Return what each of two ranks logs."""
    container = build_container(folder, "run", 2, {**keys, "pipeline_model_parallel_size": 2})
    return run_ranks(logged_rank, 2, container)


@pytest.mark.parametrize("schedule", ["zero-bubble", "heuristic", "zb-timed", "zb-1f1b"])
def test_schedules_whose_forwards_follow_one_another_alike_drop_alike(schedule: str, tmp_path: Path) -> None:
    """Each rank draws in the order of its forwards, whenever the backwards come."""
    keys = {"pipeline_model_parallel_size": 2, "hidden_dropout": 0.2, "attention_dropout": 0.2, "train_iters": 4}
    expected = train(tmp_path, "1f1b", {**keys, **SCHEDULES["1f1b"]}, ranks=2, change=float64)
    rows = train(tmp_path, "other", {**keys, **SCHEDULES[schedule]}, ranks=2, change=float64)
    assert [row["lm_loss"] for row in rows] == pytest.approx([row["lm_loss"] for row in expected], rel=1e-12)
