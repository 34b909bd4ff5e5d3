"""Context parallelism: every way of communication, with and without packed documents, trains as one process does."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from runs import train, write_corpus

from primus.engine.config import ConfigContainer

pytestmark = pytest.mark.slow  # several whole runs each

BASE: dict[str, Any] = {"train_iters": 3, "eval_interval": 2, "eval_iters": 2, "num_attention_heads": 8}
WAYS: dict[str, dict[str, Any]] = {
    "p2p": {},
    "allgather": {"cp_comm_type": "all_gather"},
    "a2a": {"cp_comm_type": "a2a"},
    "by-layer": {"cp_comm_type": ["a2a", "p2p"]},
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"group_query_attention": True, "num_query_groups": 4},
    "gpt2": {"position_embedding_type": "learned_absolute", "normalization": "LayerNorm", "qk_layernorm": True},
    "per-token": {"calculate_per_token_loss": True},
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "ring-of-exchanges": (
        4,
        {"context_parallel_size": 4, "cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]},
    ),
    "cp4": (4, {"context_parallel_size": 4}),
    "dp2": (4, {"overlap_grad_reduce": True, "overlap_param_gather": True}),
    "tp2": (4, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "pp2": (4, {"pipeline_model_parallel_size": 2}),
    "recomputed": (2, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
    "selective": (2, {"recompute_granularity": "selective"}),
}


def float64(config: ConfigContainer) -> ConfigContainer:
    precision = replace(config.mixed_precision, params_dtype="float64", grad_dtype="float64")
    return replace(config, mixed_precision=precision)


def numbers(folder: Path, name: str, keys: dict[str, Any], ranks: int = 1) -> list[float]:
    rows = train(folder, name, {**BASE, **keys}, ranks=ranks, change=float64)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm", "validation_loss") if key in row]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Short documents, packed: what each may see and where it begins depends on the masks."""
    corpus = write_corpus(tmp_path_factory.mktemp("corpus") / "text", documents=200)
    return {
        "mock_data": False,
        "data_path": str(corpus),
        "split": "80,15,5",
        "reset_position_ids": True,
        "reset_attention_mask": True,
        "eod_mask_loss": True,
    }


@pytest.fixture(scope="module")
def alone(documents: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """Return a function that gives the numbers of one process, trained once."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: numbers(folder, name, {**MODELS, "plain": {}, "documents": documents}[name]))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_as_one_process(way: str, model: str, alone: Callable[[str], list[float]], tmp_path: Path) -> None:
    found = numbers(tmp_path, "cp", {**MODELS[model], **WAYS[way], "context_parallel_size": 2}, 2)
    assert found == pytest.approx(alone(model), rel=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_packed_documents_do_not_see_one_another(
    way: str, documents: dict[str, Any], alone: Callable[[str], list[float]], tmp_path: Path
) -> None:
    found = numbers(tmp_path, "cp", {**documents, **WAYS[way], "context_parallel_size": 2}, 2)
    assert found == pytest.approx(alone("documents"), rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_context_parallelism_mixes_with_the_rest(layout: str, alone: Callable[[str], list[float]], tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    found = numbers(tmp_path, "cp", {"context_parallel_size": 2, **keys}, ranks)
    assert found == pytest.approx(alone("plain"), rel=1e-12)


DROPS = {"attention_dropout": 0.2, "attention_backend": "unfused"}


@pytest.fixture(scope="module")
def dropped(documents: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What one process finds whose attention drops."""
    folder = tmp_path_factory.mktemp("dropped")
    found = numbers(folder, "alone", {**documents, **DROPS})
    assert found != pytest.approx(numbers(folder, "whole", {**documents, **DROPS, "attention_dropout": 0.0}), rel=1e-6)
    return found


@pytest.mark.parametrize("way", ["p2p", "a2a", "ring-of-exchanges"])
def test_attention_drops_what_one_process_drops(
    way: str, dropped: list[float], documents: dict[str, Any], tmp_path: Path
) -> None:
    """Unfused attention draws its masks by position, and a ring always does."""
    ranks, keys = LAYOUTS.get(way, (2, WAYS.get(way, {})))
    found = numbers(tmp_path, "cp", {**documents, **DROPS, "context_parallel_size": 2, **keys}, ranks)
    assert found == pytest.approx(dropped, rel=1e-12)
