"""Sharded gradients and weights (ZeRO 2 and 3) train to the numbers of one process, and ranks hold what they should."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import MODELS, assert_equal, in_float64

pytestmark = pytest.mark.slow  # several whole runs each

GRADS: dict[str, Any] = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}
WEIGHTS: dict[str, Any] = {**GRADS, "data_parallel_sharding_strategy": "optim_grads_params"}
OVERLAP: dict[str, Any] = {"overlap_grad_reduce": True, "overlap_param_gather": True}
DEEP: dict[str, Any] = {"num_layers": 4}
PIPELINE: dict[str, Any] = {**DEEP, "pipeline_model_parallel_size": 2}
RECOMPUTE: dict[str, Any] = {**DEEP, "recompute_granularity": "full", "recompute_num_layers": 2}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "no_shard": (2, {**WEIGHTS, "data_parallel_sharding_strategy": "no_shard"}),
    "optim": (2, {**WEIGHTS, "data_parallel_sharding_strategy": "optim"}),
    "zero2": (2, GRADS),
    "zero2_overlapped": (4, {**GRADS, **OVERLAP}),
    "zero2_divided_before": (2, {**GRADS, "gradient_reduce_div_fusion": False}),
    "zero2_interleaved": (4, {**GRADS, **OVERLAP, **PIPELINE, "num_virtual_stages_per_pipeline_rank": 2}),
    "zero3": (2, WEIGHTS),
    "zero3_four": (4, {**WEIGHTS, **OVERLAP}),
    "zero3_little_ahead": (2, {**WEIGHTS, **OVERLAP, "suggested_communication_unit_size": 5000}),
    "zero3_two_instances": (4, {**WEIGHTS, **OVERLAP, "num_distributed_optimizer_instances": 2}),
    "zero3_tensor": (4, {**WEIGHTS, **OVERLAP, "tensor_model_parallel_size": 2}),
    "zero3_context": (2, {**WEIGHTS, "context_parallel_size": 2}),
    "zero3_pipeline": (4, {**WEIGHTS, **OVERLAP, **PIPELINE}),
    "zero3_interleaved": (4, {**WEIGHTS, **PIPELINE, "num_virtual_stages_per_pipeline_rank": 2}),
    "zero3_split_backward": (4, {**WEIGHTS, **OVERLAP, **PIPELINE, "patch_zero_bubble": True, "zero_bubble_v_schedule": True}),
    "zero3_recomputed": (2, {**WEIGHTS, **OVERLAP, **RECOMPUTE, "recompute_method": "uniform"}),
    "zero3_recomputed_blocks": (2, {**WEIGHTS, **RECOMPUTE, "recompute_method": "block"}),
    "zero3_selective": (2, {**WEIGHTS, "recompute_granularity": "selective"}),
    "zero3_meta": (2, {**WEIGHTS, "init_model_with_meta_device": True}),
    "zero3_per_token": (2, {**WEIGHTS, "calculate_per_token_loss": True}),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("reference")
    known: dict[str, Any] = {}

    def rows(model: str, keys: dict[str, Any]) -> list[dict[str, Any]]:
        kept = {key: keys[key] for key in ("num_layers", "calculate_per_token_loss") if key in keys}
        name = f"{model}{''.join(map(str, kept.values()))}"
        if name not in known:
            known[name] = train(folder, name, {**MODELS[model], **kept, "train_iters": 3}, change=in_float64)
        return known[name]

    return rows


BIASED = ("zero2_overlapped", "zero3", "zero3_tensor", "zero3_pipeline", "zero3_recomputed", "zero3_meta")
"""With LayerNorm, biases, learned positions and tied embeddings too."""


@pytest.mark.parametrize(("model", "layout"), [*(("llama", name) for name in LAYOUTS), *(("gpt2", name) for name in BIASED)])
def test_shards_train_like_one_process_in_float64(model: str, layout: str, reference: Any, tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    rows = train(tmp_path, "run", {**MODELS[model], **keys, "train_iters": 3}, ranks=ranks, change=in_float64)
    assert_equal(rows, reference(model, keys), 1e-12)
