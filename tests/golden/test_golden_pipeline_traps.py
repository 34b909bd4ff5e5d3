"""Pipelines on which other trainers were seen to go wrong: they hung, lost layers, or followed another rule of the loss."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from runs import build_container, train
from test_golden_layouts import assert_equal, in_float64
from torch import Tensor

from primus.engine.config import ConfigContainer
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.parallel.sharding import global_parameters
from primus.engine.train.assemble import Parts, assemble
from primus.engine.train.pretrain import pretrain
from primus.errors import ConfigError

pytestmark = pytest.mark.slow  # whole runs

Keys = dict[str, Any]
END = 95
"""End-of-document token of the tiny experiment."""
BY_NAME: Keys = {"patch_primus_pipeline": True}
SCHEDULES: dict[str, Keys] = {
    "1f1b": {},
    "zero-bubble": {**BY_NAME, "pp_algorithm": "zero-bubble"},
    "heuristic": {**BY_NAME, "pp_algorithm": "zero-bubble-heuristic"},
    "zbv": {**BY_NAME, "pp_algorithm": "zbv-formatted"},
    "v-half": {**BY_NAME, "pp_algorithm": "v-half"},
    "v-min": {**BY_NAME, "pp_algorithm": "v-min"},
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_fewer_microbatches_than_stages_train_all_the_same(schedule: str, tmp_path: Path) -> None:
    few: Keys = {"num_layers": 8, "global_batch_size": 2, "train_iters": 3}
    one = train(tmp_path, "one", few, change=in_float64)
    keys = {**few, **SCHEDULES[schedule], "pipeline_model_parallel_size": 4}
    assert_equal(train(tmp_path, "four", keys, ranks=4, change=in_float64), one, 1e-12)


@pytest.fixture
def masked(tmp_path: Path) -> Keys:
    """Return keys of short documents, packed: positions and attention restart, and ends are not trained."""
    prefix, random = tmp_path / "corpus", np.random.default_rng(3)
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        for _ in range(80):
            builder.add_document([*random.integers(0, END, random.integers(3, 40)).tolist(), END])
    masks = {"eod_mask_loss": True, "reset_position_ids": True, "reset_attention_mask": True}
    data = {"mock_data": False, "data_path": str(prefix), "split": "100,0,0", "micro_batch_size": 2}
    return {"num_layers": 4, "train_iters": 3, **data, **masks}


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize(
    "schedule",
    [
        {"num_virtual_stages_per_pipeline_rank": 2},
        {**BY_NAME, "pp_algorithm": "zero-bubble"},
        {**BY_NAME, "pp_algorithm": "v-half"},
    ],
    ids=["interleaved", "zero-bubble", "v-half"],
)
def test_masked_data_and_either_rule_of_the_loss_are_those_of_one_process(
    schedule: Keys, per_token: bool, masked: Keys, tmp_path: Path
) -> None:
    keys = {**masked, "calculate_per_token_loss": per_token}
    one = train(tmp_path, "one", keys, change=in_float64)
    two = train(tmp_path, "two", {**keys, **schedule, "pipeline_model_parallel_size": 2}, ranks=2, change=in_float64)
    assert_equal(two, one, 1e-12)


@pytest.mark.parametrize("per_token", [False, True])
def test_parts_of_a_sequence_share_one_rule_of_the_loss(per_token: bool, masked: Keys, tmp_path: Path) -> None:
    keys = {**masked, "calculate_per_token_loss": per_token}
    one = train(tmp_path, "one", keys, change=in_float64)
    two = train(tmp_path, "two", {**keys, "context_parallel_size": 2}, ranks=2, change=in_float64)
    assert_equal(two, one, 1e-12)


def test_a_list_of_layers_for_other_stages_is_refused(tmp_path: Path) -> None:
    keys: Keys = {"num_layers": 8, "pipeline_model_parallel_size": 2, "decoder_pipeline_manual_split_list": [2, 2, 2, 2]}
    with pytest.raises(ConfigError, match=r"decoder_pipeline_manual_split_list \[2, 2, 2, 2\] .* but 2 pipeline ranks"):
        build_container(tmp_path, "run", 2, keys)


@pytest.mark.parametrize(
    "keys", [{"use_distributed_optimizer": False}, {"overlap_grad_reduce": True}], ids=["whole", "overlapped"]
)
def test_both_copies_of_a_tied_weight_stay_equal_to_the_bit(keys: Keys, tmp_path: Path) -> None:
    def copies(_rank: int, config: ConfigContainer) -> dict[str, Tensor]:
        module, kept = importlib.import_module("primus.engine.train.pretrain"), list[Parts]()

        def keeping(*arguments: Any) -> Parts:
            kept.append(assemble(*arguments))
            return kept[-1]

        module.assemble = keeping  # type: ignore[attr-defined]
        pretrain(config, process_start=0.0)
        return {name: p.detach().clone() for name, p in global_parameters(kept[0].chunks) if "word_embeddings" in name}

    tied: Keys = {"pipeline_model_parallel_size": 2, "untie_embeddings_and_output_weights": False, **keys}
    first, *others = run_ranks(copies, 4, build_container(tmp_path, "run", 4, tied))
    assert list(first) == ["embedding.word_embeddings.weight"]
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_shards_of_fewer_elements_than_ranks_resume_on_other_numbers_of_them(tmp_path: Path) -> None:
    sizes: Keys = {"hidden_size": 4, "num_attention_heads": 2, "ffn_hidden_size": 4}
    fsdp: Keys = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    straight = train(tmp_path, "straight", sizes)
    train(tmp_path, "first", {**sizes, **fsdp, "save": "ckpt", "save_interval": 3, "exit_interval": 3}, ranks=4)
    load = {"load": str(tmp_path / "g" / "u" / "first" / "ckpt")}
    for ranks in (4, 2, 1):
        rows = train(tmp_path, f"on{ranks}", {**sizes, **fsdp, **load}, ranks=ranks)
        assert [row["lm_loss"] for row in rows] == pytest.approx([row["lm_loss"] for row in straight[3:]], rel=1e-6)
