"""Sequences in slices: whatever else is on, a pipeline of slices trains and validates as one process does, in float64."""

from pathlib import Path
from typing import Any

import pytest
from runs import build_container, write_corpus
from test_golden_pipeline import losses, said

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.pipeline.schedules import schedule_of

SLICED: dict[str, Any] = {"pipeline_model_parallel_size": 2, "patch_zero_bubble": True, "num_seq_splits": 2}
TIED = {"untie_embeddings_and_output_weights": False}
GROUPED = {"group_query_attention": True, "num_query_groups": 2}
FULL = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}
PACKED = {"mock_data": False, "split": "80,20,0", "reset_attention_mask": True, "eod_mask_loss": True, "micro_batch_size": 2}
LEARNED = {"position_embedding_type": "learned_absolute", "reset_position_ids": True, "normalization": "LayerNorm"}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
SHARDED = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

RUNS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "plain": (2, {}, {"num_seq_splits": 4}),
    "tied-deep": (4, {"num_layers": 4, **TIED}, {"pipeline_model_parallel_size": 4}),
    "tensor-grouped-packed": (4, {**TIED, **GROUPED, **PACKED}, TENSOR),
    "grouped-deep": (4, {"num_layers": 4, **GROUPED}, {"pipeline_model_parallel_size": 4, "num_seq_splits": 8}),
    "learned-packed-explicit": (2, {**LEARNED, **PACKED, "attention_backend": "unfused"}, {"overlap_p2p_comm": False}),
    "recomputed": (2, {"num_layers": 4, **GROUPED, "qk_layernorm": True}, FULL),
    "recomputed-shares": (
        4,
        {"num_layers": 4},
        {**FULL, **TENSOR, "sequence_parallel": False, "distribute_saved_activations": True},
    ),
    "recomputed-core": (2, PACKED, {"recompute_granularity": "selective"}),
    "data-per-token": (4, {**TIED, **PACKED, "calculate_per_token_loss": True}, SHARDED),
}
"""Ranks, keys of both runs, keys of the run in slices."""


@pytest.mark.parametrize("name", RUNS)
def test_slices_train_as_one_process(tmp_path: Path, name: str) -> None:
    ranks, both, sliced = RUNS[name]
    if "split" in both:
        both = {**both, "data_path": str(write_corpus(tmp_path / "corpus", documents=120, length=(5, 25)))}
    expected = losses(tmp_path, "whole", both)
    found = losses(tmp_path, "sliced", {**both, **SLICED, **sliced}, ranks)
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_run_in_slices_works_slice_by_slice(tmp_path: Path) -> None:
    text = said(tmp_path, {**SLICED, "num_layers": 2, "debug_scheduler_table": True, "pp_warmup": True})[0]
    assert "(F|0|0|0) (F|0|0|1) (F|1|0|0) (B|0|0|1) (F|1|0|1) (B|0|0|0)" in text
    assert "schedule seq1f1b of 4 microbatches" in text


def test_the_keys_choose_slices(tmp_path: Path) -> None:
    pipeline = build_container(tmp_path, "run", 2, SLICED).model.pipeline
    assert pipeline == PipelineConfig(num_slices=2, layers_per_stage=(1, 1))
    assert schedule_of(pipeline, 2, 4).num_slices == 2
