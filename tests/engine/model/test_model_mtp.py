"""Prediction layers against the definition, on the tokens that there are: no padding, no shift, no mask."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional as F

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.position import PositionConfig
from primus.engine.data.loader import Batch
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.pipeline.schedules import Op
from primus.engine.trace import Trace
from primus.engine.train.predictions import Further, Predictions
from primus.engine.train.stages import Stages

B, S, V, DEPTHS = 2, 12, 40, 2
CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=16,
    ffn_hidden_size=24,
    seq_length=S,
    vocab_size=V,
    make_vocab_size_divisible_by=8,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=4),
    position=PositionConfig(max_position_embeddings=S),
    mtp=MTPConfig(num_layers=DEPTHS),
)


def built(config: ModelConfig) -> GPTModel:
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float64, device="cpu", seed=1, streams=streams)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 0.2)
    return model


def batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(0, V, (B, S + 1), generator=generator)
    mask = (torch.rand(B, S, generator=generator) < 0.8).double()
    return Batch(
        tokens=text[:, :-1],
        labels=text[:, 1:],
        loss_mask=mask,
        position_ids=torch.arange(S).expand(B, -1),
        attention_mask=None,
    )


def lost(model: GPTModel, given: Batch) -> list[Further]:
    """Return what a training step is told of the depths."""
    found: list[Further] = []

    def on_loss(total: torch.Tensor, *others: Any) -> torch.Tensor:
        found.extend(others[-1])
        return total

    def one_forward(num_microbatches: int, forward: Any, *_: Any, **__: Any) -> None:
        forward(Op("F", 0, 0, 0), None)

    pipeline: Any = SimpleNamespace(num_slices=1, train=one_forward)
    Stages([model], pipeline, single_mesh().cp, Trace()).train(iter([given]), 1, on_loss, cast(Any, None))
    return found


def test_each_depth_loses_what_the_definition_says() -> None:
    model, given = built(CONFIG), batch()
    hidden = model.decoder(model.embedding(given.tokens, given.position_ids), model.rotary(S), None, None)
    for k, (layer, further) in enumerate(zip(model.mtp.layers, lost(model, given), strict=True), 1):
        length = S - k
        embedded = model.embedding(given.tokens[:, k:], given.position_ids[:, k:])
        both = torch.cat((layer.enorm(embedded), layer.hnorm(hidden[:length])), dim=-1)
        hidden = layer.transformer_layer(F.linear(both, layer.eh_proj.weight), model.rotary(length), None, None)
        hidden = layer.final_layernorm(hidden)
        logits = model.output_layer(hidden)
        losses = F.cross_entropy(logits.flatten(0, 1), given.labels[:, k:].flatten(), reduction="none").view(B, length)
        torch.testing.assert_close(further.total, (losses * given.loss_mask[:, k:]).sum())
        assert further.tokens == further.whole_tokens == given.loss_mask[:, k:].sum()


@pytest.mark.parametrize("per_token", [False, True])
def test_the_objective_is_the_weighted_mean_over_depths(per_token: bool) -> None:
    config = MTPConfig(num_layers=2, loss_scaling_factor=0.3)
    predictions = Predictions(config, single_mesh(), per_token=per_token)
    numbers = [Further(*map(torch.tensor, each)) for each in ((6.0, 3.0, 4.0), (5.0, 2.0, 2.0))]
    added = predictions.objective(numbers, share=0.5)
    expected = (6.0 + 5.0) if per_token else 0.5 * (6.0 / 4.0 + 5.0 / 2.0)
    assert float(added) == pytest.approx(0.3 / 2 * expected)
    assert predictions.notes() == {"mtp_1_loss": 2.0, "mtp_2_loss": 2.5}
    assert predictions.notes() == {"mtp_1_loss": 0.0, "mtp_2_loss": 0.0}


def test_an_evaluation_and_a_sample_do_not_look_ahead() -> None:
    model, given = built(CONFIG), batch()
    logits = model(given.tokens, given.position_ids)
    plain = built(replace(CONFIG, mtp=MTPConfig()))
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(logits, plain(given.tokens, given.position_ids))
    names = set(dict(model.named_parameters())) - set(dict(plain.named_parameters()))
    assert {name.rpartition(".layers.")[0] for name in names} == {"mtp"}
    assert {"mtp.layers.1.enorm.weight", "mtp.layers.1.eh_proj.weight", "mtp.layers.0.final_layernorm.weight"} < names
    assert "mtp.layers.0.transformer_layer.mlp.linear_fc1.weight" in names
