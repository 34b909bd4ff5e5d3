"""Wiring: residuals, dropout and its random streams, precision, stages that add up to the model, inference."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor
from torch.nn import functional as F

from primus.engine.config import DistConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.pipeline import PipelineConfig, stage_of
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import LossForm, build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.mesh import Group, Mesh, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import global_parameters

S, B = 8, 2
CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=16,
    ffn_hidden_size=24,
    seq_length=S,
    vocab_size=40,
    make_vocab_size_divisible_by=16,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=4),
    position=PositionConfig(max_position_embeddings=S),
    init=InitConfig(method_std=0.3),
)

PIPELINES = {
    "linear": PipelineConfig(layers_per_stage=(2, 3)),
    "interleaved": PipelineConfig(algorithm="1f1b-interleaved", num_chunks=2, layers_per_stage=(0, 2, 3, 0)),
    "fold": PipelineConfig(algorithm="v-half", num_chunks=2),
}


def build(config: ModelConfig, dtype: torch.dtype = torch.float64, **more: Any) -> GPTModel:
    (model,) = build_stages(config, single_mesh(), dtype, **more)
    return model


def build_stages(config: ModelConfig, mesh: Mesh, dtype: torch.dtype = torch.float64, **more: Any) -> tuple[GPTModel, ...]:
    streams = RandomStreams(3, mesh.coordinates)
    return build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=3, streams=streams, **more)


def tokens_and_positions() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(40, (B, S), generator=generator), torch.arange(S).expand(B, S)


@pytest.mark.parametrize("after", [False, True], ids=["before-norm", "after-norm"])
def test_residual_is_taken_before_or_after_the_norm(after: bool) -> None:
    layer = build(replace(CONFIG, residual_post_layernorm=after)).decoder.layers["0"]
    x = torch.randn(S, B, 16, dtype=torch.float64)
    normed = layer.input_layernorm(x)
    middle = (normed if after else x) + layer.self_attention(normed, None, None)[0]
    normed = layer.pre_mlp_layernorm(middle)
    expected = (normed if after else middle) + layer.mlp(normed)[0]
    torch.testing.assert_close(layer(x, None, None), expected)


def test_biases_of_both_halves_are_added_once() -> None:
    layer = build(replace(CONFIG, add_bias_linear=True, activation="gelu")).decoder.layers["0"]
    with torch.no_grad():
        layer.mlp.linear_fc2.bias.fill_(5.0)
        layer.self_attention.linear_proj.bias.fill_(7.0)
        layer.self_attention.linear_proj.weight.zero_()
        layer.mlp.linear_fc2.weight.zero_()
    x = torch.randn(S, B, 16, dtype=torch.float64)
    torch.testing.assert_close(layer(x, None, None), x + 12.0)


def test_fp32_residual_keeps_the_stream_wide_and_the_linears_narrow() -> None:
    seen: dict[str, torch.dtype] = {}
    model = build(replace(CONFIG, fp32_residual_connection=True), torch.bfloat16)
    layer = model.decoder.layers["1"]
    layer.register_forward_hook(lambda _, __, out: seen.__setitem__("stream", out.dtype))
    layer.mlp.register_forward_hook(lambda _, __, out: seen.__setitem__("mlp", out[0].dtype))
    model(*tokens_and_positions())
    assert seen == {"stream": torch.float32, "mlp": torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_near_fp32(dtype: torch.dtype) -> None:
    tokens, positions = tokens_and_positions()
    losses = []
    for model in (build(CONFIG, torch.float32), build(CONFIG, dtype)):
        loss = model(tokens, positions, labels_BS=tokens, loss_mask_BS=torch.ones(B, S))
        loss.backward()
        assert loss.dtype == torch.float32
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


def test_fp16_cross_entropy_gives_fp16_losses() -> None:
    tokens, positions = tokens_and_positions()
    model = build(CONFIG, torch.float16, loss=LossForm(in_fp16=True))
    assert model(tokens, positions, labels_BS=tokens).dtype == torch.float16


@pytest.mark.parametrize("counted", [5, 0, S * B], ids="{} tokens with loss".format)
def test_tokens_without_loss_have_no_logits(counted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, positions = tokens_and_positions()
    mask = torch.zeros(S * B, dtype=torch.float64)
    mask[torch.randperm(S * B, generator=torch.Generator().manual_seed(1))[:counted]] = 1.0
    mask_BS = mask.view(B, S)
    model = build(CONFIG)
    expected = (model(tokens, positions, labels_BS=tokens) * mask_BS).sum()
    whole = torch.autograd.grad(expected, list(model.parameters()))
    seen: list[int] = []
    head = model.output_layer
    assert head is not None
    plain = head._sum
    monkeypatch.setattr(head, "_sum", lambda x_TH, *rest: seen.append(len(x_TH)) or plain(x_TH, *rest))
    actual = model(tokens, positions, labels_BS=tokens, loss_mask_BS=mask_BS)
    parts = torch.autograd.grad(actual, list(model.parameters()))
    assert seen == [max(1, counted)]
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    for a, e in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


def test_dropout_acts_in_training_only() -> None:
    config = replace(CONFIG, hidden_dropout=0.5, attention=replace(CONFIG.attention, attention_dropout=0.5))
    model, plain = build(config), build(CONFIG)
    inputs = tokens_and_positions()
    assert not torch.allclose(model.train()(*inputs), model(*inputs))
    torch.testing.assert_close(model.eval()(*inputs), plain(*inputs))


def dropout_masks(rank: int, sequence_parallel: bool) -> tuple[Tensor, Tensor]:
    """Return which channels this rank dropped after the embedding, and which probabilities in attention."""
    parallel = ParallelConfig(tensor_model_parallel_size=2, sequence_parallel=sequence_parallel)
    mesh = build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    attention = replace(CONFIG.attention, attention_dropout=0.5, backend="local")
    config = replace(CONFIG, parallel=parallel, hidden_dropout=0.5, attention=attention)
    streams = RandomStreams(3, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float64, device="cpu", seed=3, streams=streams)
    embedded = model.embedding(*tokens_and_positions())
    heads = torch.ones(S, B, 2, 4, dtype=torch.float64)
    attended = model.decoder.layers["0"].self_attention.core_attention(heads, heads[:, :, :1], heads[:, :, :1], None)
    return embedded.detach() == 0, attended.detach()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_dropout_masks_agree_on_replicated_and_differ_on_divided_activations(sequence_parallel: bool) -> None:
    (embedded_0, attended_0), (embedded_1, attended_1) = run_ranks(dropout_masks, 2, sequence_parallel)
    assert torch.equal(embedded_0, embedded_1) is not sequence_parallel
    assert not torch.equal(attended_0, attended_1)


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_stages_add_up_to_the_model(pipeline: PipelineConfig, tie: bool) -> None:
    tokens, positions = tokens_and_positions()
    config = replace(CONFIG, num_layers=5, tie_embeddings=tie)
    whole = build(config)
    ranks = [build_stages(replace(config, pipeline=pipeline), pipeline_mesh(2, rank)) for rank in range(2)]
    parts = dict(pair for chunks in ranks for pair in global_parameters(chunks))
    assert parts.keys() == dict(whole.named_parameters()).keys()
    stages = {
        stage_of(pipeline.placement, 2, rank, number): chunk
        for rank, chunks in enumerate(ranks)
        for number, chunk in enumerate(chunks)
    }
    hidden = None
    for _, stage in sorted(stages.items()):
        hidden = stage(tokens, positions, hidden_SBH=hidden)
    torch.testing.assert_close(hidden, whole(tokens, positions), rtol=0, atol=0)


def pipeline_mesh(size: int, rank: int) -> Mesh:
    """Return the mesh of a pipeline rank that talks to nobody."""
    layout = Layout(world_size=size, pipeline=size)
    return replace(
        single_mesh(), layout=layout, rank=rank, coordinates=layout.coordinates(rank), pp=Group(tuple(range(size)), rank)
    )


def test_longer_and_shorter_sequences_than_configured() -> None:
    model = build(CONFIG)
    tokens = torch.randint(40, (1, 3 * S))
    long = model(tokens, torch.arange(3 * S)[None])
    short = model(tokens[:, :5], torch.arange(5)[None])
    torch.testing.assert_close(short, long[:, :5])


def test_losses_follow_from_the_logits() -> None:
    tokens, positions = tokens_and_positions()
    labels = tokens.roll(-1, 1)
    model = build(CONFIG)
    logits = model(tokens, positions)
    assert logits.shape == (B, S, 40)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(B, S)
    torch.testing.assert_close(model(tokens, positions, labels_BS=labels), expected)
    mask = (torch.arange(S) % 3 > 0).double().expand(B, S)
    torch.testing.assert_close(model(tokens, positions, None, labels, mask), (expected * mask).sum())


def test_query_key_layer_scaling_numbers_layers_from_one() -> None:
    config = replace(CONFIG, attention=replace(CONFIG.attention, query_key_layer_scaling=True))
    scalings = [layer.self_attention.core_attention.layer_scaling for layer in build(config).decoder.layers.values()]
    assert scalings == [1, 2]
