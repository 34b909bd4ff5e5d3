"""Prediction layers against the definition, on the tokens that there are: no padding, no shift, no mask."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ranks import run_ranks
from torch.nn import functional as F

from primus.engine.config import DDPConfig, DistConfig, ParallelConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import ModelConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.recompute import RecomputeConfig
from primus.engine.data.loader import Batch
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import build_mesh, single_mesh
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


def built(config: ModelConfig, dtype: torch.dtype = torch.float64) -> GPTModel:
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=1, streams=streams)
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


def packed(*documents: Batch) -> Batch:
    """Return documents in one sequence, of which none sees another."""
    blocked = ~torch.block_diag(*(torch.ones(each.tokens.shape[1], each.tokens.shape[1]) for each in documents)).bool()
    causal = torch.ones(S, S).triu(1).bool()
    names = ("tokens", "labels", "loss_mask", "position_ids")
    fields = {name: torch.cat([getattr(each, name) for each in documents], dim=1) for name in names}
    return Batch(**fields, attention_mask=(blocked | causal).expand(B, 1, S, S))


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


def test_packed_documents_lose_what_they_lose_one_by_one() -> None:
    model, given = built(CONFIG), batch()
    documents = []
    for rows in (slice(0, 5), slice(5, S)):
        fields = {name: getattr(given, name)[:, rows] for name in ("tokens", "labels", "position_ids")}
        loss_mask = torch.ones_like(given.loss_mask[:, rows])
        # What would follow a document is not its to predict.
        loss_mask[:, -1] = 0
        documents.append(Batch(**fields, loss_mask=loss_mask, attention_mask=None))
    one_by_one = [lost(model, document) for document in documents]
    for further, first, second in zip(lost(model, packed(*documents)), *one_by_one, strict=True):
        for together, *each in zip(further, first, second, strict=True):
            torch.testing.assert_close(together, sum(each))


def test_packed_samples_lose_what_they_lose_one_by_one() -> None:
    model, whole = built(CONFIG), batch()
    names = ("tokens", "labels", "loss_mask", "position_ids")
    rows = [{name: getattr(whole, name)[:1, rows] for name in names} for rows in (slice(0, 5), slice(5, S))]
    for row in rows:
        row["position_ids"] = torch.arange(row["tokens"].shape[1])[None]
    together = {name: torch.cat([row[name] for row in rows], dim=1) for name in names}
    one_by_one = [lost(model, Batch(**row, attention_mask=None)) for row in rows]
    packed = lost(model, Batch(**together, attention_mask=None, cu_seqlens=(0, 5, S)))
    for further, first, second in zip(packed, *one_by_one, strict=True):
        for found, *each in zip(further, first, second, strict=True):
            torch.testing.assert_close(found, sum(each))


@pytest.mark.parametrize(
    ("recompute", "calls"),
    [
        (RecomputeConfig(granularity="full", layer_ids=(0, 3)), [1, 2]),
        (RecomputeConfig(granularity="full", method="uniform", num_layers=2), [2, 2]),
        (RecomputeConfig(granularity="full", method="block", num_layers=2), [1, 1]),
        (RecomputeConfig(granularity="full", method="block", num_layers=3), [2, 1]),
    ],
    ids=["named", "uniform", "block-of-the-decoder", "block-beyond"],
)
def test_recomputation_numbers_prediction_layers_behind_the_others(recompute: RecomputeConfig, calls: list[int]) -> None:
    found, norms = [0, 0], []
    for config in (CONFIG, replace(CONFIG, recompute=recompute)):
        model = built(config)
        for depth, layer in enumerate(model.mtp.layers):
            layer.register_forward_pre_hook(lambda *_, depth=depth: found.__setitem__(depth, found[depth] + 1))
        sum(each.total for each in lost(model, batch())).backward()
        norms.append([parameter.grad.norm().item() for parameter in model.parameters() if parameter.grad is not None])
    assert [both - 1 for both in found] == calls
    assert norms[0] == norms[1]


def test_prediction_layers_add_in_the_dtype_of_the_residual_stream() -> None:
    config = replace(CONFIG, fp32_residual_connection=True)
    model, seen = built(config, torch.bfloat16), []
    model.mtp.layers[0].transformer_layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].dtype))
    lost(model, batch())
    assert seen == [torch.float32]


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


def whole_rank(rank: int) -> bool:
    """Tell whether weights of the last unit are whole after an evaluation."""
    mesh = build_mesh(ParallelConfig(), DistConfig(), torch.device("cpu"))
    model = built(CONFIG)
    config = DDPConfig(
        use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params"
    )
    GradientBuffers([model], config, mesh, grad_dtype=torch.float64, per_token=False, units=[model.units()])
    given = batch()
    with torch.no_grad():
        model.eval()(given.tokens, given.position_ids, None, given.labels, given.loss_mask)
    assert model.mtp is not None
    return any(parameter.untyped_storage().nbytes() for parameter in model.mtp.parameters())


def test_an_evaluation_gives_their_gathered_weights_back() -> None:
    assert run_ranks(whole_rank, 2) == [False, False]
