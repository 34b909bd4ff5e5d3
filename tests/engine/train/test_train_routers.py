"""What a step does with routers: biases follow the load, and losses are told as means."""

from pathlib import Path

import pytest
import torch
from oracle import model_of
from runs import build_container

from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe.layer import MoELayer
from primus.engine.model.moe.router import Router
from primus.engine.parallel.mesh import single_mesh
from primus.engine.train.routers import Routers

KEYS = {
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_hidden_size": 16,
    "num_attention_heads": 2,
    "position_embedding_type": "rope",
    "num_experts": 4,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_aux_loss_coeff": 0.1,
}


def built(folder: Path) -> tuple[Routers, list[Router]]:
    model: GPTModel = model_of(folder, {"flat_keys": {**KEYS, "vocab_size": 96}, "seq_length": 32})
    config = build_container(folder, "config", 1, KEYS).model.moe
    layers = [layer.mlp for _, layer in model.decoder.numbered()]
    routers = [mlp.router for mlp in layers if isinstance(mlp, MoELayer)]
    assert len(routers) == 2
    return Routers([model], single_mesh(), config, per_token=False), routers


def test_biases_step_towards_an_even_load_once_a_batch(tmp_path: Path) -> None:
    routers, (first, second) = built(tmp_path)
    assert first.tokens_per_expert is not None
    assert second.tokens_per_expert is not None
    first.tokens_per_expert.copy_(torch.tensor([3.0, 1.0, 0.0, 4.0]))
    second.tokens_per_expert.fill_(2.0)
    routers.end()
    torch.testing.assert_close(first.expert_bias, torch.tensor([-1e-3, 1e-3, 1e-3, -1e-3]))
    torch.testing.assert_close(second.expert_bias, torch.zeros(4))
    assert not first.tokens_per_expert.any()
    routers.end()
    torch.testing.assert_close(first.expert_bias, torch.tensor([-1e-3, 1e-3, 1e-3, -1e-3]))


def test_losses_are_means_over_microbatches_and_layers_since_they_were_told(tmp_path: Path) -> None:
    routers, (first, second) = built(tmp_path)
    for _ in range(2):
        routers.begin(loss_scale=8.0, num_microbatches=4)
    assert first.losses.gradient == 8.0 / 4
    first.losses.sums["load_balancing_loss"] = torch.tensor(8.0)
    second.losses.sums["load_balancing_loss"] = torch.tensor(16.0)
    assert routers.notes() == {"load_balancing_loss": pytest.approx(1.5)}
    assert routers.notes() == {}, "nothing has been computed since"
