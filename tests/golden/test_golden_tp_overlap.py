"""Overlapped tensor parallelism trains as one process does: with biases, shared heads, recomputation and split backwards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import train

from primus.engine.config import ConfigContainer

pytestmark = pytest.mark.slow  # whole runs

ON = {"tensor_model_parallel_size": 2, "tp_comm_overlap": True}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"global_batch_size": 2, "group_query_attention": True, "num_query_groups": 1},
    "biased": {"global_batch_size": 2, "normalization": "LayerNorm", "add_bias_linear": True, "swiglu": False},
}
CASES: list[tuple[str, str, int, dict[str, Any]]] = [
    ("heads-shared-by-four", "llama", 4, {**ON, "tensor_model_parallel_size": 4, "tp_comm_overlap_rs_dgrad": True}),
    (
        "recomputed",
        "biased",
        2,
        {**ON, "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
    ),
    (
        "split-backwards",
        "llama",
        4,
        {**ON, "pipeline_model_parallel_size": 2, "patch_primus_pipeline": True, "pp_algorithm": "zero-bubble"},
    ),
    (
        "by-a-map",
        "biased",
        4,
        {
            **ON,
            "tp_comm_overlap_rs_dgrad": True,
            "tp_comm_overlap_cfg": {
                "qkv_dgrad": {"method": "ring_exchange"},
                "fc2_fprop": {"method": "ring_exchange"},
                "proj_fprop": {"num_splits": 3},
            },
        },
    ),
]


def in_float64(config: ConfigContainer) -> ConfigContainer:
    return replace(config, mixed_precision=replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("alone")
    return {name: numbers(folder, name, keys, 1) for name, keys in MODELS.items()}


def numbers(folder: Path, name: str, keys: dict[str, Any], ranks: int) -> list[float]:
    rows = train(folder, name, {**keys, "train_iters": 2}, ranks=ranks, change=in_float64)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm")]


@pytest.mark.parametrize(("model", "ranks", "keys"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_overlap_changes_no_number(tmp_path: Path, alone: Any, model: str, ranks: int, keys: dict[str, Any]) -> None:
    found = numbers(tmp_path, "run", {**MODELS[model], **keys}, ranks)
    assert len(found) == 4
    assert found == pytest.approx(alone[model], rel=1e-12)
