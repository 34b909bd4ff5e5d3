"""Sizes and arithmetic in integers, against published numbers and against a built model."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from primus.engine.config.attention import AttentionConfig, MLAConfig
from primus.engine.config.model import ModelConfig, ParallelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.flops import training_cost, training_flops
from primus.engine.model.gpt import GPTModel
from primus.engine.model.size import padded_vocab_size, parameter_count
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

ANCHOR = ModelConfig(
    num_layers=4,
    hidden_size=64,
    ffn_hidden_size=96,
    seq_length=128,
    vocab_size=256,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=24),
    position=PositionConfig(max_position_embeddings=128),
)
LATENT = replace(
    ANCHOR.attention,
    qk_norm="model",
    mla=MLAConfig(enabled=True, q_lora_rank=40, kv_lora_rank=24, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=20),
)
EXPERTS = MoEConfig(num_experts=4, layers=(1, 3), ffn_hidden_size=40, shared_expert_intermediate_size=24)
LARGER = replace(
    ANCHOR,
    ffn_hidden_size=256,
    vocab_size=1024,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=16),
)


@pytest.mark.parametrize(
    ("vocab_size", "tensor_parallel", "rows"),
    [(50257, 1, 50304), (50257, 2, 50432), (50257, 8, 51200), (128256, 8, 129024), (151936, 8, 152576)],
)
def test_vocabulary_is_padded_as_published(vocab_size: int, tensor_parallel: int, rows: int) -> None:
    parallel = ParallelConfig(tensor_model_parallel_size=tensor_parallel)
    assert padded_vocab_size(replace(ANCHOR, vocab_size=vocab_size, parallel=parallel)) == rows


def test_parameter_count_equals_the_anchor() -> None:
    assert parameter_count(ANCHOR).total == 180800


@pytest.mark.parametrize(
    "config",
    [
        ANCHOR,
        replace(ANCHOR, tie_embeddings=True, add_bias_linear=True, normalization="LayerNorm", activation="gelu"),
        replace(
            ANCHOR,
            normalization="LayerNorm",
            attention=replace(ANCHOR.attention, add_qkv_bias=True, qk_norm="model"),
            position=PositionConfig(type="learned_absolute", max_position_embeddings=128),
        ),
        replace(ANCHOR, attention=replace(ANCHOR.attention, qk_norm="whole", output_gate=True, add_qkv_bias=True)),
        replace(ANCHOR, post_attention_norm=True, post_mlp_norm=True, normalization="LayerNorm"),
        replace(ANCHOR, attention=LATENT),
        replace(ANCHOR, attention=replace(LATENT, qk_norm="none", mla=replace(LATENT.mla, q_lora_rank=None))),
        replace(ANCHOR, moe=replace(EXPERTS, shared_expert_gate=True)),
        replace(ANCHOR, moe=EXPERTS, mtp=MTPConfig(num_layers=2), normalization="LayerNorm"),
        replace(
            ANCHOR,
            moe=replace(EXPERTS, layers=(0, 1, 2, 3), ffn_hidden_size=None, router_enable_expert_bias=True),
            tie_embeddings=True,
            add_bias_linear=True,
        ),
        replace(ANCHOR, activation="quick_geglu", attention=replace(ANCHOR.attention, qk_norm="l2"), vocab_size=100),
    ],
    ids=[
        "llama",
        "gpt2-like",
        "learned-positions",
        "gated-heads",
        "norms-behind",
        "latent",
        "latent-keys",
        "experts",
        "predictions",
        "experts-alone",
        "padded",
    ],
)
def test_parameter_count_equals_the_built_model(config: ModelConfig) -> None:
    assert parameter_count(config).total == sum(parameter.numel() for parameter in _built(config).parameters())


def _built(config: ModelConfig) -> GPTModel:
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    return model


def test_a_token_meets_all_but_the_experts_that_it_does_not_visit() -> None:
    size = parameter_count(replace(ANCHOR, moe=EXPERTS))
    assert size.total - size.active == 2 * (4 - 2) * 3 * 64 * 40
    assert str(size) == f"{size.total:,d} parameters ({size.active:,d} active)"
    assert str(parameter_count(ANCHOR)) == "180,800 parameters"


@pytest.mark.parametrize(("activation", "flops"), [("gelu", 1_711_276_032), ("swiglu", 2_113_929_216)])
def test_training_flops_equal_the_published_formula(activation: str, flops: int) -> None:
    assert training_flops(replace(LARGER, activation=activation), 8) == flops


def test_shorter_samples_take_attention_less() -> None:
    whole, halves = (training_cost(LARGER).flops(tokens=1024, squares=1024 * length) for length in (128, 64))
    a = LARGER.attention
    assert whole == training_flops(LARGER, 8)
    assert whole - halves == 6 * 1024 * 64 * LARGER.num_layers * a.num_attention_heads * a.kv_channels


def test_training_flops_count_each_depth_of_the_prediction_layers() -> None:
    # One layer like the last, the projection from twice the width, and the output once more.
    more = training_flops(replace(LARGER, mtp=MTPConfig(num_layers=2)), 8) - training_flops(LARGER, 8)
    layer = (training_flops(LARGER, 8) - 6 * 8 * 128 * 64 * 1024) // 4
    assert more == 2 * (layer + 6 * 8 * 128 * (2 * 64 * 64 + 64 * 1024))


def test_training_flops_of_experts_equal_the_published_formula() -> None:
    moe = MoEConfig(num_experts=4, layers=(0, 2), ffn_hidden_size=128, shared_expert_intermediate_size=96)
    assert training_flops(replace(LARGER, moe=moe), 8) == 2_340_421_632


@pytest.mark.parametrize(
    "config",
    [
        ANCHOR,
        replace(ANCHOR, activation="gelu"),
        replace(ANCHOR, attention=replace(ANCHOR.attention, num_query_groups=4), tie_embeddings=True),
        replace(ANCHOR, moe=EXPERTS),
        replace(ANCHOR, attention=LATENT),
        replace(ANCHOR, attention=replace(LATENT, mla=replace(LATENT.mla, q_lora_rank=None))),
    ],
    ids=["gated", "not-gated", "no-groups", "experts", "latent", "latent-keys"],
)
def test_training_flops_are_those_of_the_products_that_run(config: ModelConfig) -> None:
    explicit = replace(config, attention=replace(config.attention, backend="unfused"))
    model = _built(explicit)
    tokens = torch.zeros(2, config.seq_length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        model(tokens, torch.arange(config.seq_length).expand(2, -1))
    # Explicit attention multiplies the whole square; the router's product is small and left out.
    a = config.attention
    channels = (a.mla.score_channels + a.mla.v_head_dim) // 2 if a.mla.enabled else a.kv_channels
    square = config.num_layers * a.num_attention_heads * channels * config.seq_length
    routers = len(config.moe.layers) * (config.moe.num_experts or 0) * config.hidden_size
    assert 3 * counter.get_total_flops() - 6 * tokens.numel() * (square + routers) == training_flops(config, 2)


def test_very_many_layers_are_counted_by_their_kinds() -> None:
    """Layers of a kind are counted once, and whether one has experts is no search through all that have."""
    few = replace(ANCHOR, num_layers=4, moe=EXPERTS)
    many = replace(few, num_layers=50_000, moe=replace(EXPERTS, layers=tuple(range(1, 50_000, 2))))
    once, often = parameter_count(few), parameter_count(many)
    assert often.layers[:4] == once.layers
    assert often.total - once.total == 24_998 * (once.layers[0].total + once.layers[1].total)
    ends = training_flops(replace(few, num_layers=2, moe=replace(EXPERTS, layers=(1,))), 1)
    assert training_flops(many, 1) - ends == 24_999 * (training_flops(few, 1) - ends)


def test_sizes_need_no_torch() -> None:
    code = "import sys; import primus.engine.model.size, primus.engine.model.flops; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
