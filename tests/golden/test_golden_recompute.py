"""Recomputation changes memory, not numbers: losses are the same to the bit, dropout included, in every layout."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from runs import build_container, train
from torch.utils.checkpoint import checkpoint

from primus.engine.config import ConfigContainer
from primus.engine.config.recompute import RecomputeConfig, stretches
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.model import recompute
from primus.engine.parallel.mesh import build_mesh
from primus.engine.train.assemble import assemble
from primus.engine.train.pretrain import with_vocabulary

pytestmark = pytest.mark.slow  # whole runs

MODEL: dict[str, Any] = {
    "num_layers": 3,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "train_iters": 3,
    "micro_batch_size": 2,
    "overlap_grad_reduce": True,
    "overlap_param_gather": True,
    "use_distributed_optimizer": True,
}
FULL = {"recompute_granularity": "full"}
VARIANTS: dict[str, dict[str, Any]] = {
    "selective": {"recompute_granularity": "selective"},
    "short": {"recompute_activations": True},
    "uniform-2": {**FULL, "recompute_method": "uniform", "recompute_num_layers": 2},
    "block-1": {**FULL, "recompute_method": "block", "recompute_num_layers": 1},
    "layers": {**FULL, "recompute_layer_ids": "2,0"},
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": False}),
    "tp2-sp": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "cp2": (2, {"context_parallel_size": 2, "cp_comm_type": ["p2p", "allgather", "a2a"]}),
}
CASES = [
    (variant, layout)
    for variant, layout in itertools.product(VARIANTS, LAYOUTS)
    if layout in ("one", "tp2-sp") or variant == "uniform-2"
]


def curve(folder: Path, name: str, ranks: int, keys: dict[str, Any]) -> list[tuple[float, float]]:
    return [(row["lm_loss"], row["grad_norm"]) for row in train(folder, name, {**MODEL, **keys}, ranks=ranks)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[float, float]]]:
    folder = tmp_path_factory.mktemp("plain")
    return {name: curve(folder, name, ranks, keys) for name, (ranks, keys) in LAYOUTS.items()}


@pytest.mark.parametrize(("variant", "layout"), CASES)
def test_losses_and_norms_are_the_same_to_the_bit(variant: str, layout: str, plain: dict[str, Any], tmp_path: Path) -> None:
    ranks, keys = LAYOUTS[layout]
    assert curve(tmp_path, "run", ranks, {**keys, **VARIANTS[variant]}) == plain[layout]


def test_distributed_inputs_change_nothing_either(plain: dict[str, Any], tmp_path: Path) -> None:
    ranks, keys = LAYOUTS["tp2"]
    assert (
        curve(tmp_path, "run", ranks, {**keys, **VARIANTS["uniform-2"], "distribute_saved_activations": True}) == plain["tp2"]
    )


def kept_bytes(folder: Path, name: str, keys: dict[str, Any], ranks: int = 1) -> int:
    """Return the bytes that a forward keeps for its backward, weights left out."""

    def measure(_rank: int, config: ConfigContainer) -> int:
        config = with_vocabulary(config, build_tokenizer(config.tokenizer))
        mesh = build_mesh(config.model.parallel, config.dist, torch.device("cpu"))
        (model,) = assemble(config, mesh, None).chunks
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        sizes: dict[int, int] = {}

        def pack(x: torch.Tensor) -> torch.Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = storage.nbytes()
            return x

        def recorded(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            for argument in arguments:
                if isinstance(argument, torch.Tensor):
                    pack(argument)
            return checkpoint(function, *arguments, **options)

        recompute.checkpoint = recorded  # type: ignore[attr-defined]
        tokens = torch.zeros(2, config.model.seq_length, dtype=torch.long)
        positions = torch.arange(config.model.seq_length).expand(2, -1)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = model(tokens, positions, None, tokens, torch.ones_like(tokens, dtype=torch.float32))
        loss.backward()
        return sum(sizes.values())

    # With heads of 16 channels 256 positions are few enough for probabilities to be kept.
    sizes = {**MODEL, "num_layers": 6, "kv_channels": 16, "seq_length": 256, "max_position_embeddings": 256}
    config = build_container(folder, name, ranks, {**sizes, "hidden_dropout": 0.0, "attention_dropout": 0.0, **keys})
    return int(run_ranks(measure, ranks, config)[0])


def test_memory_falls_as_promised(tmp_path: Path) -> None:
    kept = {name: kept_bytes(tmp_path, name, keys) for name, keys in {"nothing": {}, **VARIANTS}.items()}
    # Scores of half the pairs (256 x 256 x 4 heads x 2 sequences, fp32, rounded up to blocks) in each layer.
    assert kept["nothing"] - kept["selective"] > 6 * 0.5 * 256 * 256 * 4 * 2 * 4
    assert kept["short"] == kept["selective"]
    assert kept["uniform-2"] < 0.5 * kept["nothing"]
    assert kept["uniform-2"] < kept["layers"] < kept["block-1"] < kept["nothing"]
    tp2 = {"tensor_model_parallel_size": 2, "sequence_parallel": False, **VARIANTS["uniform-2"]}
    whole = kept_bytes(tmp_path, "whole", tp2, ranks=2)
    assert kept_bytes(tmp_path, "sliced", {**tp2, "distribute_saved_activations": True}, ranks=2) < whole


def test_layers_are_cut_into_stretches() -> None:
    def cut(**keys: Any) -> list[tuple[tuple[int, ...], bool]]:
        return [(s.layers, s.is_recomputed) for s in stretches(RecomputeConfig(**keys), range(4, 9))]

    assert cut() == [((4, 5, 6, 7, 8), False)]
    assert cut(granularity="full", method="uniform", num_layers=2) == [((4, 5), True), ((6, 7), True), ((8,), True)]
    assert [layers for layers, twice in cut(granularity="full", method="block", num_layers=2) if twice] == [(4,), (5,)]
    assert [layers for layers, twice in cut(granularity="full", layer_ids=(0, 5, 8)) if twice] == [(5,), (8,)]
