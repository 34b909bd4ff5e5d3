"""Pipelines whose activations wait in host memory train bit for bit as those that keep them."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, train

from primus.engine.config import ConfigContainer
from primus.engine.pipeline.offload import OffloadStore
from primus.engine.train.pretrain import pretrain
from primus.engine.train.sinks import Report

BASE = {"num_layers": 4, "pipeline_model_parallel_size": 2, "train_iters": 2}
FOLDED = {**BASE, "patch_primus_pipeline": True}
GROUPED = {
    **BASE,
    "num_virtual_stages_per_pipeline_rank": 2,
    "patch_zero_bubble": True,
    "enable_zero_bubble": False,
    "auto_offload_time": False,
    "offload_time": 0.02,
}
ATTENTION = {"offload": True, "offload_ops": "attn"}
ONE, TWO = ({"cpu_offload": True, "offload_chunk_num": number} for number in (1, 2))
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
TENSOR = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "untie_embeddings_and_output_weights": False}
FSDP = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
EVALUATED = {"eval_interval": 1, "eval_iters": 1}
DEEP = {"num_layers": 8, "pipeline_model_parallel_size": 4, "position_embedding_type": "none"}

CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "zbv": (2, {**FOLDED, "pp_algorithm": "zbv-formatted", "recompute_granularity": "selective"}, ATTENTION),
    "v-half": (2, {**FOLDED, "pp_algorithm": "v-half", "attention_backend": "unfused", **DROPOUT, **EVALUATED}, ATTENTION),
    "v-min": (4, {**FOLDED, "pp_algorithm": "v-min", **DEEP}, ATTENTION),
    "groups": (2, {**GROUPED, **DROPOUT, "pp_warmup": True, "interleave_group_size": 1}, ONE),
    "groups-tensor": (4, {**GROUPED, **TENSOR}, TWO),
    "groups-sharded-weights": (4, {**GROUPED, **FSDP}, TWO),
}


def numbers(folder: Path, name: str, keys: Mapping[str, Any], ranks: int) -> list[Any]:
    rows = train(folder, name, keys, ranks=ranks)
    return [row[key] for row in rows for key in ("lm_loss", "grad_norm", "validation_loss") if key in row]


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_a_run_that_keeps_everything(tmp_path: Path, case: str) -> None:
    ranks, keys, offload = CASES[case]
    kept = {key: value for key, value in keys.items() if "offload" not in key}
    assert numbers(tmp_path, "moved", {**keys, **offload}, ranks) == numbers(tmp_path, "kept", kept, ranks)


def test_a_fold_parks_what_its_first_chunk_attends_with_and_groups_all_it_keeps(tmp_path: Path) -> None:
    """Of the one layer: fused projection, rotated queries and keys, output, and the probabilities that a CPU keeps."""
    width, length, heads = 32, 32, 4
    attention = 4 * length * (3 * width + width + width + width + heads * length)
    for one, most, text in parked(tmp_path, "fold", {**FOLDED, "pp_algorithm": "v-half", **ATTENTION}):
        assert one == attention
        assert most >= one
        assert most % (4 * length * width) == 0, "whole tensors; of a forward that is still being copied, some of them"
        assert text.count(f"up to {most:,d} bytes of activations lie in host memory at a time") == 1
    for one, most, text in parked(tmp_path, "groups", {**GROUPED, **ONE}):
        assert most >= one > attention
        assert text.count(f"up to {most:,d} bytes") == 1


def test_a_run_without_time_for_copies_says_so(tmp_path: Path) -> None:
    """By the estimate: a tiny model computes too little for what it would copy."""
    for one, most, text in parked(tmp_path, "run", {**GROUPED, **ONE, "auto_offload_time": True}):
        assert (one, most) == (0, 0)
        assert text.count("no activations of this rank go to the host") == 1


def parked(folder: Path, name: str, keys: Mapping[str, Any]) -> list[tuple[int, int, str]]:
    """Return for each of two ranks the bytes of one forward on the host, the most it had there, and what it logged."""
    return run_ranks(_parked, 2, build_container(folder, name, 2, {"micro_batch_size": 1, **keys}))


def _parked(_rank: int, container: ConfigContainer) -> tuple[int, int, str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("primus")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    first, most, free = list[int](), list[int](), OffloadStore.free

    def watched(store: OffloadStore, unit: Any) -> None:
        free(store, unit)
        first.append(store.parked_bytes)
        most.append(store.most_parked_bytes)

    OffloadStore.free = watched  # type: ignore[method-assign]
    Report.close = lambda self, *, failed: None  # type: ignore[method-assign]  # pictures take longest
    pretrain(container, process_start=0.0)
    return (*first, 0)[0], max(most, default=0), "\n".join(lines)
