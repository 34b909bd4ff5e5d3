"""Adapters counted from the configuration, against those of built models, whole and divided over ranks."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from test_peft_layouts import MODELS, adapted

from primus.engine.config import DistConfig, PEFTConfig
from primus.engine.config.model import ModelConfig, ParallelConfig
from primus.engine.model.adapter_size import adapter_sizes
from primus.engine.parallel.mesh import build_mesh, single_mesh
from primus.engine.peft.apply import sizes

ALL: dict[str, Any] = {"dim": 4, "target_modules": ()}
SCHEMES = {
    "lora": PEFTConfig(**ALL),
    "canonical": PEFTConfig(**ALL, scheme="canonical_lora"),
    "dora": PEFTConfig(**ALL, scheme="dora"),
    "own": PEFTConfig(**ALL, share_expert_adapters=False, normalize_moe_lora=True),
}


def on_rank(config: ModelConfig, peft: PEFTConfig) -> int:
    found, parallel = adapter_sizes(peft, config), config.parallel
    layers = (*found.layers, *found.predictions)
    return sum(layer.dense_on_rank(parallel) + layer.experts_on_rank(parallel) for layer in layers)


def trained_numbers(_: int, cases: list[tuple[ModelConfig, PEFTConfig]]) -> list[int]:
    mesh = build_mesh(cases[0][0].parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    return [sum(p.numel() for p in adapted(config, peft, mesh).parameters() if p.requires_grad) for config, peft in cases]


CASES = [(model, peft) for model in MODELS.values() for peft in SCHEMES.values()]


def test_adapters_of_every_model_and_scheme_are_counted() -> None:
    for model, peft in CASES:
        whole = adapter_sizes(peft, model)
        assert whole.total == sizes([adapted(model, peft, single_mesh())], model, single_mesh()).trainable, (model, peft)
        assert len(whole.layers) == model.num_layers
        assert len(whole.predictions) == model.mtp.num_layers


@pytest.mark.parametrize(
    "parallel",
    [
        ParallelConfig(tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=1),
        ParallelConfig(expert_model_parallel_size=2),
    ],
    ids=["tensor", "expert"],
)
def test_a_rank_has_its_part_of_them(parallel: ParallelConfig) -> None:
    divided = [(replace(model, parallel=parallel), peft) for model, peft in CASES]
    expected = [on_rank(model, peft) for model, peft in divided]
    assert run_ranks(trained_numbers, 2, divided) == [expected] * 2
