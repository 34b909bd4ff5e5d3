"""Keys of activations in host memory: what they ask for, and what is refused."""

from typing import Any

import pytest

from primus.engine.config import OffloadConfig
from primus.engine.pipeline.schedules import schedule_of

FOLDED = {"pipeline_model_parallel_size": 2, "patch_primus_pipeline": True, "pp_algorithm": "v-half"}
MOVED = {**FOLDED, "offload": True, "offload_ops": "attn"}
GROUPED = {
    "pipeline_model_parallel_size": 2,
    "num_virtual_stages_per_pipeline_rank": 2,
    "patch_zero_bubble": True,
    "enable_zero_bubble": False,
}
PARKED = {**GROUPED, "cpu_offload": True, "offload_chunk_num": 1}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, OffloadConfig()),
        (FOLDED, OffloadConfig()),
        ({**FOLDED, "offload": True}, OffloadConfig()),
        (MOVED, OffloadConfig(tensors="attn", num_chunks=1)),
        ({**MOVED, "offload_ops": " attn , attn"}, OffloadConfig(tensors="attn", num_chunks=1)),
        ({**GROUPED, "offload_chunk_num": 2, "offload_time": 0.5, "auto_offload_time": False}, OffloadConfig()),
        (PARKED, OffloadConfig(tensors="all", num_chunks=1)),
        ({**PARKED, "offload_chunk_num": 2}, OffloadConfig(tensors="all", num_chunks=2)),
        ({**PARKED, "offload_time": 0.5}, OffloadConfig(tensors="all", num_chunks=1)),
        (
            {**PARKED, "offload_time": 0.05, "auto_offload_time": False, "offload_overlap_sr": False},
            OffloadConfig(tensors="all", num_chunks=1, time=0.05, overlaps=False),
        ),
    ],
)
def test_what_the_keys_ask_for(build: Any, keys: dict[str, Any], expected: OffloadConfig) -> None:
    ranks = keys.get("pipeline_model_parallel_size", 1)
    assert build(keys, world_size=ranks).config.model.pipeline.offload == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [("offload_chunk_num", 2), ("offload_time", 0.75), ("auto_offload_time", True), ("offload_overlap_sr", False)],
)
def test_each_key_of_the_zero_bubble_section_changes_the_table(build: Any, key: str, value: Any) -> None:
    base = {"offload_time": 0.5, "auto_offload_time": False, "pipeline_model_parallel_size": 8, "num_layers": 16}
    if key == "offload_chunk_num":
        base["offload_time"] = 0.05
    if key == "offload_overlap_sr":
        base["offload_time"] = 0.75
    size = {"global_batch_size": 16}

    def rows(**more: Any) -> Any:
        model = build({**PARKED, **base, **size, **more}, world_size=8).config.model
        return schedule_of(model.pipeline.with_copy_time(model.hidden_size, model.seq_length), 8, 16).rows

    assert rows() != rows(**{key: value})


REFUSED: list[tuple[str, int, dict[str, Any], str]] = [
    (
        "alone",
        1,
        {"offload": True},
        "needs a pipeline with patch_primus_pipeline: true and pp_algorithm zbv-formatted, v-half or",
    ),
    ("unpatched", 2, {**MOVED, "patch_primus_pipeline": False}, "the schedule is 1f1b (patch_primus_pipeline false (exp.yaml:"),
    ("by-name", 2, {**MOVED, "pp_algorithm": "zero-bubble"}, "the schedule is zero-bubble"),
    (
        "other-section",
        2,
        {"pipeline_model_parallel_size": 2, "patch_zero_bubble": True, "zero_bubble_v_schedule": True, "offload": True},
        "the schedule is v-half (patch_primus_pipeline false",
    ),
    ("unknown", 2, {**MOVED, "offload_ops": "attn,mlp"}, "there is no mlp; only attn, core attention, can be moved"),
    ("unsupported", 1, {"offload_ops": "grouped_linear"}, "the tensors of grouped_linear cannot be moved; only attn can"),
    ("no-groups", 1, {"cpu_offload": True, "offload_chunk_num": 1}, "but the schedule is 1f1b: set patch_zero_bubble: true"),
    ("zero-bubble", 2, {**PARKED, "num_virtual_stages_per_pipeline_rank": 1}, "but the schedule is 1f1b"),
    (
        "folded",
        2,
        {**PARKED, "enable_zero_bubble": True, "zero_bubble_v_schedule": True},
        "needs the group-interleaved schedule, but the schedule is v-half",
    ),
    ("odd", 3, {**PARKED, "num_layers": 6}, "works on pairs of ranks, but pipeline_model_parallel_size 3 (exp.yaml:"),
    ("no-chunk", 2, {**PARKED, "offload_chunk_num": 0}, "it must be from 1 to the 2 model chunk(s) of a rank"),
    ("many-chunks", 2, {**PARKED, "offload_chunk_num": 3}, "offload_chunk_num 3 (exp.yaml:"),
    (
        "recomputed",
        2,
        {**PARKED, "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        "cpu_offload true (exp.yaml:",
    ),
    ("no-time", 2, {**PARKED, "offload_time": 0.0, "auto_offload_time": False}, "offload_time 0.0 (exp.yaml:"),
    ("negative-time", 2, {**PARKED, "offload_time": -1.0, "auto_offload_time": False}, "offload_time -1.0 (exp.yaml:"),
    (
        "slow",
        8,
        {**PARKED, "num_layers": 16, "offload_chunk_num": 2, "offload_time": 0.5, "auto_offload_time": False},
        "copies to the host that take 0.5 of a chunk's forward and gradients are too slow for 2 chunk(s) a rank",
    ),
]


@pytest.mark.parametrize(("ranks", "keys", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_refused(problems_of: Any, ranks: int, keys: dict[str, Any], message: str) -> None:
    degree = {"pipeline_model_parallel_size": ranks, "global_batch_size": 16}
    (problem,) = problems_of({**keys, **degree}, world_size=ranks)
    assert message in problem


def test_wide_models_may_offload_more(build: Any, problems_of: Any) -> None:
    """Of an estimate the width decides: copies are fast beside what a wide layer computes."""
    keys = {**PARKED, "pipeline_model_parallel_size": 8, "num_layers": 16, "global_batch_size": 16, "offload_chunk_num": 2}
    wide = {"hidden_size": 32768, "ffn_hidden_size": 64, "num_attention_heads": 4, "kv_channels": 8}
    assert build({**keys, **wide}, world_size=8).config.model.pipeline.offload.num_chunks == 2
    (problem,) = problems_of({**keys, **wide, "hidden_size": 8192}, world_size=8)
    assert "reduce offload_chunk_num, or do without cpu_offload" in problem
