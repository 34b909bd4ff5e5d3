"""Every layout and every cut of the batch computes the numbers of one process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import train

from primus.engine.config import ConfigContainer

pytestmark = pytest.mark.slow  # several whole runs each

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {"use_distributed_optimizer": False}),
    "dp2_distributed_optimizer": (2, {}),
    "dp4_overlapped": (4, {"overlap_grad_reduce": True, "overlap_param_gather": True, "ddp_num_buckets": 3}),
    "dp4_two_instances": (4, {"num_distributed_optimizer_instances": 2}),
    "dp4_two_instances_overlapped": (
        4,
        {
            "num_distributed_optimizer_instances": 2,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "ddp_num_buckets": 3,
        },
    ),
    "dp4_four_instances": (4, {"num_distributed_optimizer_instances": 4}),
    "dp2_average_in_collective": (2, {"ddp_average_in_collective": True}),
    "tp2": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": False}),
    "tp2_sequence_parallel": (2, {"tensor_model_parallel_size": 2}),
    "tp4_sequence_parallel": (4, {"tensor_model_parallel_size": 4}),
    "tp2_dp2": (4, {"tensor_model_parallel_size": 2}),
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"group_query_attention": True, "num_query_groups": 2},
    "one_query_group": {"group_query_attention": True, "num_query_groups": 1},
    "gpt2": {
        "normalization": "LayerNorm",
        "position_embedding_type": "learned_absolute",
        "add_position_embedding": True,
        "add_bias_linear": True,
        "swiglu": False,
        "untie_embeddings_and_output_weights": False,
    },
}


def in_float64(config: ConfigContainer) -> ConfigContainer:
    return replace(config, mixed_precision=replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64"))


def assert_equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], rel: float) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a["lm_loss"] == pytest.approx(b["lm_loss"], rel=rel)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=rel)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("reference")
    return {name: train(folder, name, {**keys, "train_iters": 3}, change=in_float64) for name, keys in MODELS.items()}


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("model", list(MODELS))
def test_layout_equals_one_process_in_float64(model: str, layout: str, reference: Any, tmp_path: Path) -> None:
    ranks, overrides = LAYOUTS[layout]
    rows = train(tmp_path, "run", {**MODELS[model], **overrides, "train_iters": 3}, ranks=ranks, change=in_float64)
    assert_equal(rows, reference[model], 1e-12)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("micro", [2, 4, 8])
def test_loss_does_not_depend_on_the_cut_into_microbatches(micro: int, per_token: bool, tmp_path: Path) -> None:
    keys = {"calculate_per_token_loss": per_token, "train_iters": 3}
    one = train(tmp_path, "one", keys, change=in_float64)
    cut = train(tmp_path, "cut", {**keys, "micro_batch_size": micro}, change=in_float64)
    assert_equal(cut, one, 1e-12)


def test_per_token_loss_with_masked_tokens_does_not_depend_on_the_cut_or_the_ranks(tmp_path: Path) -> None:
    keys = {"calculate_per_token_loss": True, "eod_mask_loss": True, "train_iters": 3}
    one = train(tmp_path, "one", keys, change=in_float64)
    cut = train(tmp_path, "cut", {**keys, "micro_batch_size": 2}, ranks=2, change=in_float64)
    assert_equal(cut, one, 1e-12)


def test_dummy_vocabulary_rows_leave_the_loss_alone(tmp_path: Path) -> None:
    rows = [
        train(tmp_path, f"by{m}", {"make_vocab_size_divisible_by": m, "train_iters": 3}, change=in_float64) for m in (1, 64)
    ]
    assert_equal(rows[0], rows[1], 1e-12)
