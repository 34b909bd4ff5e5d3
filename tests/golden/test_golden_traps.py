"""Whole runs on which other trainers were seen to go wrong."""

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from runs import build_container, train
from torch import Tensor

from primus.engine.config import ConfigContainer
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.parallel.sharding import global_parameters, sharding_of
from primus.engine.train.assemble import Parts, assemble
from primus.engine.train.pretrain import pretrain

pytestmark = pytest.mark.slow  # whole runs

END = 95
"""End-of-document token of the tiny experiment."""


def in_float64(config: ConfigContainer) -> ConfigContainer:
    return replace(config, mixed_precision=replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64"))


@pytest.fixture
def half_masked(tmp_path: Path) -> dict[str, Any]:
    """Return keys of a corpus in which half of all sequences hold nothing but end-of-document tokens, which are not trained."""
    prefix, random = tmp_path / "corpus", np.random.default_rng(3)
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        for document in range(40):
            builder.add_document([END] * 64 if document % 2 else random.integers(0, END, 64).tolist())
    return {"mock_data": False, "data_path": str(prefix), "split": "60,40,0", "eod_mask_loss": True, "train_iters": 3}


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["lm_loss"] for row in rows]


def test_a_microbatch_with_nothing_to_learn_adds_nothing(half_masked: dict[str, Any], tmp_path: Path) -> None:
    keys = {**half_masked, "calculate_per_token_loss": True}
    whole = train(tmp_path, "whole", {**keys, "micro_batch_size": 8}, change=in_float64)
    cut = train(tmp_path, "cut", keys, change=in_float64)
    ranks = train(tmp_path, "ranks", keys, ranks=4, change=in_float64)
    assert losses(cut) == pytest.approx(losses(whole), rel=1e-12)
    assert losses(ranks) == pytest.approx(losses(whole), rel=1e-12)
    assert [row["grad_norm"] for row in cut] == pytest.approx([row["grad_norm"] for row in whole], rel=1e-12)
    by_microbatch = train(tmp_path, "default", half_masked, ranks=2)
    assert all(math.isfinite(value) for row in by_microbatch for value in (row["lm_loss"], row["grad_norm"]))


def test_an_evaluation_is_one_mean_over_all_its_tokens(half_masked: dict[str, Any], tmp_path: Path) -> None:
    still = {**half_masked, "lr": 0.0, "min_lr": 0.0, "train_iters": 1, "eval_iters": 3, "eval_interval": 1}

    def run(micro: int, ranks: int) -> list[dict[str, Any]]:
        return train(tmp_path, f"m{micro}r{ranks}", {**still, "micro_batch_size": micro}, ranks=ranks, change=in_float64)

    values = {each: run(*each) for each in ((8, 1), (1, 1), (2, 2))}
    whole = values[8, 1][0]["validation_loss"]
    assert values[1, 1][0]["validation_loss"] == pytest.approx(whole, rel=1e-12)
    assert values[2, 2][0]["validation_loss"] == pytest.approx(whole, rel=1e-12)
    one = train(tmp_path, "one", {**still, "eval_iters": 1}, change=in_float64)
    assert one[0]["validation_loss"] != pytest.approx(whole, rel=1e-6), "later iterations count too"


def test_the_logged_rate_is_the_one_that_moved_the_weights(half_masked: dict[str, Any], tmp_path: Path) -> None:
    keys = {**half_masked, "full_validation": True, "eval_interval": 1}
    still = train(tmp_path, "still", {**keys, "lr": 0.0, "min_lr": 0.0})
    warm = train(tmp_path, "warm", {**keys, "lr": 1e-3, "min_lr": 0.0, "lr_warmup_iters": 2})
    begun = train(tmp_path, "begun", {**keys, "lr": 1e-3, "min_lr": 0.0, "lr_warmup_iters": 2, "lr_warmup_init": 1e-4})
    assert [row["learning_rate"] for row in warm[:2]] == pytest.approx([0.0, 5e-4])
    assert warm[0]["validation_loss"] == still[0]["validation_loss"]
    assert warm[1]["validation_loss"] != still[1]["validation_loss"]
    assert begun[0]["learning_rate"] == 1e-4
    assert begun[0]["validation_loss"] != still[0]["validation_loss"]


@pytest.mark.parametrize(
    ("sizes", "first", "later"),
    [
        ({"vocab_size": 997, "make_vocab_size_divisible_by": 1, "global_batch_size": 6}, 2, (3, 2)),
        ({"hidden_size": 4, "num_attention_heads": 2, "ffn_hidden_size": 4}, 4, (4, 2, 1)),
    ],
    ids=["odd-vocabulary", "fewer-elements-than-ranks"],
)
def test_odd_sizes_resume_on_other_numbers_of_ranks(
    sizes: dict[str, Any], first: int, later: tuple[int, ...], tmp_path: Path
) -> None:
    straight = train(tmp_path, "straight", sizes)
    train(tmp_path, "first", {**sizes, "save": "ckpt", "save_interval": 3, "exit_interval": 3}, ranks=first)
    source = {"load": str(tmp_path / "g" / "u" / "first" / "ckpt")}
    for ranks in later:
        resumed = train(tmp_path, f"on{ranks}", {**sizes, **source}, ranks=ranks)
        assert [row["iteration"] for row in resumed] == [4, 5, 6]
        assert losses(resumed) == pytest.approx(losses(straight[3:]), rel=1e-6)


def test_weights_that_all_ranks_hold_stay_equal_to_the_bit(tmp_path: Path) -> None:
    def replicas(_rank: int, config: ConfigContainer) -> dict[str, Tensor]:
        module, kept = importlib.import_module("primus.engine.train.pretrain"), []

        def keeping(*arguments: Any) -> Parts:
            kept.append(assemble(*arguments))
            return kept[-1]

        module.assemble = keeping  # type: ignore[attr-defined]
        pretrain(config, process_start=0.0)
        return {n: p.detach().clone() for n, p in global_parameters(kept[0].chunks) if sharding_of(p).dim is None}

    keys = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "hidden_dropout": 0.1, "qk_layernorm": True}
    first, *others = run_ranks(replicas, 4, build_container(tmp_path, "run", 4, keys))
    assert len(first) == 2 * 4 + 1
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
