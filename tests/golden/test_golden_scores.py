"""Sinks, windows and soft caps on every kind of layout equal one process in float64."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]
MODEL: Keys = {
    "num_layers": 4,
    "group_query_attention": True,
    "num_query_groups": 2,
    "use_sink_attention": True,
    "sink_sliding_window": 10,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 2.0,
    "attention_dropout": 0.1,
    "init_method_std": 0.2,
    "train_iters": 3,
}
NO_DROPOUT: Keys = {"attention_dropout": 0.0}
PACKED: Keys = {"reset_attention_mask": True, "reset_position_ids": True, **NO_DROPOUT}
NARROW: Keys = {
    **NO_DROPOUT,
    "use_sink_attention": False,
    "sink_sliding_window": 0,
    "position_embedding_type": "rope",
    "window_size": [6, 0],
    "window_attn_skip_freq": 4,
    "attention_chunk_size": 10,
    "no_rope_freq": 2,
    "attn_temperature_scale": 0.3,
    "attn_temperature_floor": 4,
    "qk_l2_norm": True,
}
GATED: Keys = {
    **NO_DROPOUT,
    "attention_output_gate": True,
    "qk_layernorm": True,
    "qk_norm_type": "per_layer",
    "normalization": "RMSNorm",
    "post_self_attn_layernorm": True,
    "post_mlp_layernorm": True,
    "apply_wd_to_qk_layernorm": True,
}
GATED_SHARED: Keys = {**GATED, "qk_norm_type": "per_head", "num_query_groups": 1}
TP2: Keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
CP2: Keys = {"context_parallel_size": 2}
PP2: Keys = {"pipeline_model_parallel_size": 2}
SLICES: Keys = {"patch_zero_bubble": True, "num_seq_splits": 2}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}

LAYOUTS: dict[str, tuple[int, Keys, Keys]] = {
    "unfused": (1, {"attention_backend": "unfused"}, {}),
    "unfused-selective": (1, {"attention_backend": "unfused", "recompute_granularity": "selective"}, {}),
    "full": (1, FULL, {}),
    "dp2": (2, {"use_distributed_optimizer": True}, NO_DROPOUT),
    "tp2": (2, TP2, NO_DROPOUT),
    "cp2-ring": (2, CP2, {}),
    "cp2-a2a": (2, {**CP2, "cp_comm_type": "a2a"}, NO_DROPOUT),
    "cp2-allgather": (2, {**CP2, "cp_comm_type": "allgather"}, NO_DROPOUT),
    "cp2-packed": (2, CP2, PACKED),
    "cp2-allgather-packed": (2, {**CP2, "cp_comm_type": "allgather"}, PACKED),
    "pp2-slices": (2, {**PP2, **SLICES}, NO_DROPOUT),
    "narrow-unfused": (1, {"attention_backend": "unfused"}, NARROW),
    "narrow-cp2-ring": (2, CP2, NARROW),
    "narrow-cp2-allgather": (2, {**CP2, "cp_comm_type": "allgather"}, NARROW),
    "narrow-cp2-a2a-pp2": (4, {**CP2, **PP2, "cp_comm_type": "a2a"}, NARROW),
    "narrow-pp2-slices": (2, {**PP2, **SLICES}, NARROW),
    "gated-tp2": (2, TP2, GATED),
    "gated-tp2-shared-keys": (2, {**TP2, "sequence_parallel": False}, GATED_SHARED),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Keys, list[dict[str, Any]]]]:
    folder = tmp_path_factory.mktemp("alone")
    models = ({}, NO_DROPOUT, PACKED, NARROW, GATED, GATED_SHARED)
    return [(keys, train(folder, f"one-{i}", {**MODEL, **keys}, change=in_float64)) for i, keys in enumerate(models)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(layout: str, alone: list[tuple[Keys, list[dict[str, Any]]]], tmp_path: Path) -> None:
    ranks, keys, model = LAYOUTS[layout]
    rows = train(tmp_path, "many", {**MODEL, **keys, **model}, ranks=ranks, change=in_float64)
    (expected,) = (rows for keys, rows in alone if keys == model)
    assert_equal(rows, expected, 1e-12)
