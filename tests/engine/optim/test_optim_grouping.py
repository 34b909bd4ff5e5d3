"""Who decays and who has a learning rate of its own."""

from typing import Any

import pytest
import torch
from torch import nn

from primus.engine.config import OptimizerConfig
from primus.engine.optim.grouping import UpdateGroup, group_of
from primus.engine.parallel.sharding import Sharding


def group(name: str, *shape: int, special: bool = False, **config: Any) -> UpdateGroup:
    sharding = Sharding(dim=None, is_embedding_or_output=special)
    return group_of(name, nn.Parameter(torch.zeros(shape)), sharding, OptimizerConfig(lr=1.0, **config))


@pytest.mark.parametrize(
    ("name", "shape", "decays"),
    [
        ("decoder.layers.0.mlp.linear_fc1.weight", (4, 2), True),
        ("embedding.word_embeddings.weight", (4, 2), True),
        ("decoder.layers.0.input_layernorm.weight", (4,), False),
        ("decoder.layers.0.mlp.linear_fc1.bias", (4,), False),
        ("decoder.layers.0.mlp.experts.bias", (4, 2), False),
        ("decoder.final_layernorm.weight", (1,), False),
    ],
)
def test_gains_and_biases_do_not_decay(name: str, shape: tuple[int, ...], decays: bool) -> None:
    assert group(name, *shape).decays is decays


def test_norms_of_queries_and_keys_decay_where_they_are_to() -> None:
    for norm in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        name = f"decoder.layers.0.self_attention.{norm}.weight"
        assert [group(name, 4, decay_qk_norms=decay).decays for decay in (False, True)] == [False, True]
        assert not group(name.replace("weight", "bias"), 4, decay_qk_norms=True).decays
    assert not group("decoder.layers.0.input_layernorm.weight", 4, decay_qk_norms=True).decays


@pytest.mark.parametrize(
    ("config", "embedding", "output"),
    [
        ({}, "default", "default"),
        ({"decoupled_lr": 0.5}, "embedding", "output"),
        ({"head_lr_mult": 0.5}, "default", "output"),
        ({"head_lr_mult": 0.5, "decoupled_lr": 0.5}, "embedding", "output"),
    ],
)
def test_embedding_and_output_follow_their_own_rates(config: dict[str, float], embedding: str, output: str) -> None:
    assert group("embedding.word_embeddings.weight", 4, 2, special=True, **config).rate == embedding
    assert group("output_layer.weight", 4, 2, special=True, **config).rate == output
    assert group("embedding.position_embeddings.weight", 4, 2, **config).rate == "default"
    assert group("decoder.layers.0.mlp.linear_fc1.weight", 4, 2, **config).rate == "default"
