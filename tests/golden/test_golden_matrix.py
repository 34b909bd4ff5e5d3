"""The matrix: mixtures of all kinds of parallelism, on 2 to 8 processes, against one process in float64."""

from pathlib import Path
from typing import Any

import pytest
from runs import train
from test_golden_layouts import assert_equal, in_float64

pytestmark = pytest.mark.slow  # a whole run each

Keys = dict[str, Any]

MODEL: Keys = {
    "num_layers": 8,
    "group_query_attention": True,
    "num_query_groups": 2,
    "untie_embeddings_and_output_weights": False,
    "train_iters": 2,
    "eval_iters": 0,
}
OVERLAP: Keys = {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_num_buckets": 4}
PLAIN: Keys = {"use_distributed_optimizer": False}
ZERO2: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads"}
ZERO3: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "overlap_grad_reduce": True}
INSTANCES: Keys = {"num_distributed_optimizer_instances": 2}
NO_SP: Keys = {"sequence_parallel": False}
ALLGATHER, A2A = ({"cp_comm_type": way} for way in ("allgather", "a2a"))
TWO_LEVELS: Keys = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]}
FULL: Keys = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
BLOCK: Keys = {**FULL, "recompute_method": "block"}
CHOSEN: Keys = {"recompute_granularity": "full", "recompute_layer_ids": [0, 3, 6]}
SELECTIVE: Keys = {"recompute_granularity": "selective"}
ZB1P: Keys = {"patch_zero_bubble": True, "zero_bubble_max_pending_backward": 2}
ZBV: Keys = {"patch_zero_bubble": True, "zero_bubble_v_schedule": True, "zero_bubble_v_schedule_mem_setup": "zb"}
V_HALF: Keys = {**ZBV, "zero_bubble_v_schedule_mem_setup": "half"}
V_MIN: Keys = {**ZBV, "zero_bubble_v_schedule_mem_setup": "min"}
ORDER: Keys = {"use_tp_pp_dp_mapping": True}


def primus(algorithm: str) -> Keys:
    return {"patch_primus_pipeline": True, "pp_algorithm": algorithm}


def vp(chunks: int) -> Keys:
    return {"num_virtual_stages_per_pipeline_rank": chunks}


Row = tuple[int, int, int, int, Keys]
"""Processes, tensor, context and pipeline sizes; data parallelism is what is left."""

MATRIX: dict[str, Row] = {
    "dp2-replicated": (2, 1, 1, 1, PLAIN),
    "dp8-sharded": (8, 1, 1, 1, OVERLAP),
    "dp8-instances": (8, 1, 1, 1, {**OVERLAP, **INSTANCES}),
    "dp4-zero2": (4, 1, 1, 1, ZERO2),
    "dp8-zero3-instances": (8, 1, 1, 1, {**ZERO3, **INSTANCES}),
    "dp4-zero3-full": (4, 1, 1, 1, {**ZERO3, **FULL, "overlap_param_gather": True}),
    "tp2-no-sp": (2, 2, 1, 1, NO_SP),
    "tp2-chosen": (2, 2, 1, 1, CHOSEN),
    "tp4-selective": (4, 4, 1, 1, SELECTIVE),
    "tp2-dp4": (8, 2, 1, 1, OVERLAP),
    "tp2-dp4-zero3": (8, 2, 1, 1, ZERO3),
    "tp2-shares-dp2": (4, 2, 1, 1, {**BLOCK, **NO_SP, "distribute_saved_activations": True}),
    "cp2": (2, 1, 2, 1, {}),
    "cp4-allgather": (4, 1, 4, 1, ALLGATHER),
    "cp2-a2a-full": (2, 1, 2, 1, {**A2A, **FULL}),
    "cp4-two-levels-dp2": (8, 1, 4, 1, {**TWO_LEVELS, **OVERLAP}),
    "cp2-tp2": (4, 2, 2, 1, {}),
    "cp2-tp2-dp2-zero2": (8, 2, 2, 1, ZERO2),
    "cp2-dp2-zero3-block": (4, 1, 2, 1, {**ZERO3, **BLOCK}),
    "pp2": (2, 1, 1, 2, {}),
    "pp4-batched": (4, 1, 1, 4, {"overlap_p2p_comm": False}),
    "pp8": (8, 1, 1, 8, SELECTIVE),
    "pp2-vp4": (2, 1, 1, 2, vp(4)),
    "pp4-vp2-chosen": (4, 1, 1, 4, {**vp(2), **CHOSEN}),
    "pp2-vp2-dp2-aligned": (4, 1, 1, 2, {**vp(2), **OVERLAP}),
    "pp2-vp4-dp2-with-step": (4, 1, 1, 2, {**vp(4), **OVERLAP, "overlap_param_gather_with_optimizer_step": True}),
    "pp2-vp4-dp2-unaligned": (4, 1, 1, 2, {**vp(4), **OVERLAP, "align_grad_reduce": False, "align_param_gather": False}),
    "pp2-dp2-zero3": (4, 1, 1, 2, ZERO3),
    "pp4-dp2-mapping": (8, 1, 1, 4, {**ORDER, **OVERLAP}),
    "pp2-tp2": (4, 2, 1, 2, {}),
    "pp2-tp2-vp2-dp2": (8, 2, 1, 2, {**vp(2), **OVERLAP}),
    "pp2-tp2-dp2-zero2": (8, 2, 1, 2, {**ZERO2, **FULL}),
    "pp2-cp2": (4, 1, 2, 2, {}),
    "pp2-cp2-tp2": (8, 2, 2, 2, SELECTIVE),
    "pp2-cp2-dp2-zero3-mapping": (8, 1, 2, 2, {**ZERO3, **ORDER}),
    "pp4-zb1p": (4, 1, 1, 4, ZB1P),
    "pp2-zb1p-tp2-dp2": (8, 2, 1, 2, {**ZB1P, **OVERLAP}),
    "pp4-zbv": (4, 1, 1, 4, ZBV),
    "pp2-zbv-cp2": (4, 1, 2, 2, ZBV),
    "pp4-v-half-dp2": (8, 1, 1, 4, V_HALF),
    "pp2-v-half-dp2-zero3": (4, 1, 1, 2, {**V_HALF, **ZERO3}),
    "pp4-v-min-full": (4, 1, 1, 4, {**V_MIN, **FULL}),
    "pp4-zero-bubble": (4, 1, 1, 4, primus("zero-bubble")),
    "pp2-heuristic-tp2": (4, 2, 1, 2, primus("zero-bubble-heuristic")),
    "pp4-interleaved-dp2": (8, 1, 1, 4, {**primus("1f1b-interleaved"), **vp(2)}),
    "pp2-zbv-formatted-dp2-zero2": (4, 1, 1, 2, {**primus("zbv-formatted"), **vp(2), **ZERO2}),
    "pp2-slices-tp2": (4, 2, 1, 2, {"patch_zero_bubble": True, "enable_zero_bubble": False, "num_seq_splits": 2}),
}


def keys_of(row: Row) -> Keys:
    _, tensor, context, pipeline, keys = row
    sizes = (
        ("tensor_model_parallel_size", tensor),
        ("context_parallel_size", context),
        ("pipeline_model_parallel_size", pipeline),
    )
    return {**MODEL, **dict(sizes), **keys}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return train(tmp_path_factory.mktemp("one"), "one", MODEL, change=in_float64)


def test_the_matrix_is_as_wide_as_promised() -> None:
    assert len(MATRIX) >= 40
    assert {row[0] for row in MATRIX.values()} == {2, 4, 8}


@pytest.mark.parametrize("name", list(MATRIX))
def test_a_mixture_equals_one_process(name: str, one_process: list[dict[str, Any]], tmp_path: Path) -> None:
    row = MATRIX[name]
    assert_equal(train(tmp_path, "run", keys_of(row), ranks=row[0], change=in_float64), one_process, 1e-12)


IN_FLOAT32 = ("tp2-dp4", "cp2-tp2", "dp8-zero3-instances", "pp2-vp2-dp2-aligned", "pp4-zbv", "pp4-v-half-dp2", "pp4-zb1p")


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_a_mixture_agrees_with_one_process_in_float32(name: str, tmp_path: Path) -> None:
    row = MATRIX[name]
    expected = train(tmp_path, "one", {**MODEL, "train_iters": 4})
    for ours, theirs in zip(train(tmp_path, "run", {**keys_of(row), "train_iters": 4}, ranks=row[0]), expected, strict=True):
        assert ours["lm_loss"] == pytest.approx(theirs["lm_loss"], rel=1e-6)
