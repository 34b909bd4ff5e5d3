"""Mamba-2 layers: the scan in chunks against the recurrence, the mixer against transformers', sizes, first weights."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Lfm2Config, Mamba2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.blocks import BlocksConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.ssm import MambaConfig
from primus.engine.model.builder import build_model
from primus.engine.model.flops import training_flops
from primus.engine.model.gpt import GPTModel
from primus.engine.model.size import parameter_count
from primus.engine.model.ssm.conv import causal_convolution
from primus.engine.model.ssm.scan import selective_scan
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.errors import ConfigError

S, B, H = 13, 2, 16
MODEL = ModelConfig(
    num_layers=4,
    hidden_size=H,
    ffn_hidden_size=24,
    seq_length=S,
    vocab_size=90,
    make_vocab_size_divisible_by=1,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=6),
    position=PositionConfig(max_position_embeddings=S),
    mamba=MambaConfig(num_heads=4, head_dim=6, state_dim=5, num_groups=2, conv_width=3),
    blocks=BlocksConfig(mixing=("mamba", "attention", "none", "mamba"), feed_forward=("none", "none", "mlp", "none")),
    init=InitConfig(additions_per_layer=1),
)


def build(config: ModelConfig, dtype: torch.dtype = torch.float64) -> GPTModel:
    mesh = single_mesh()
    (model,) = build_model(config, mesh=mesh, dtype=dtype, device="cpu", seed=5, streams=RandomStreams(5, mesh.coordinates))
    return model


def recurrence(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Token by token, by the definition."""
    b, c = (m.repeat_interleave(x.shape[2] // m.shape[2], dim=2) for m in (b, c))
    state, out = x.new_zeros(x.shape[1], x.shape[2], b.shape[3], x.shape[3]), []
    for x_t, dt_t, b_t, c_t in zip(x, dt, b, c, strict=True):
        state = torch.exp(dt_t * decay)[..., None, None] * state + torch.einsum("bn,bnz,bnd->bnzd", dt_t, b_t, x_t)
        out.append(torch.einsum("bnz,bnzd->bnd", c_t, state))
    return torch.stack(out)


def scanned() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(S, B, 4, 3, generator=generator, dtype=torch.float64)
    dt = torch.rand(S, B, 4, generator=generator, dtype=torch.float64)
    decay = -16 * torch.rand(4, generator=generator, dtype=torch.float64)
    b, c = torch.randn(2, S, B, 2, 5, generator=generator, dtype=torch.float64)
    return [each.requires_grad_() for each in (x, dt, decay, b, c)]


@pytest.mark.parametrize("chunk", [1, 4, 13, 64])
def test_chunks_of_the_scan_are_the_recurrence(chunk: int) -> None:
    inputs = scanned()
    expected, actual = recurrence(*inputs), selective_scan(*inputs, chunk=chunk)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_half_precision_is_scanned_in_fp32_and_far_decay_is_zero() -> None:
    x, dt, decay, b, c = (each.detach() for each in scanned())
    y = selective_scan(x.bfloat16(), dt.float() * 100, decay.float(), b.bfloat16(), c.bfloat16())
    assert y.dtype == torch.float32
    assert y.isfinite().all()


def test_convolution_is_torchs_and_looks_back_only() -> None:
    x = torch.randn(S, B, 6, dtype=torch.float64)
    weight, bias = torch.randn(6, 1, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    theirs = F.conv1d(x.permute(1, 2, 0), weight, bias, padding=3, groups=6)[..., :S].permute(2, 0, 1)
    torch.testing.assert_close(causal_convolution(x, weight, bias), theirs, rtol=1e-13, atol=1e-13)


def test_mixer_is_that_of_transformers() -> None:
    mamba = MambaConfig(num_heads=4, head_dim=8, state_dim=5, num_groups=2, conv_width=4)
    ours = build(replace(MODEL, mamba=mamba)).decoder.layers["0"].mixer
    theirs = Mamba2Mixer(
        Mamba2Config(
            num_heads=4,
            head_dim=8,
            hidden_size=H,
            state_size=5,
            expand=2,
            n_groups=2,
            conv_kernel=4,
            use_bias=False,
            use_conv_bias=True,
            chunk_size=4,
        ),
        layer_idx=0,
    ).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(S, B, H, dtype=torch.float64)
    expected = theirs(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(ours(x)[0], expected, rtol=1e-6, atol=1e-6)


def test_short_convolution_is_that_of_transformers() -> None:
    blocks = BlocksConfig(mixing=("short_conv", "attention", "short_conv", "short_conv"))
    ours = build(replace(MODEL, blocks=blocks)).decoder.layers["0"].self_attention
    theirs = Lfm2ShortConv(Lfm2Config(hidden_size=H, num_hidden_layers=1, layer_types=["conv"]), layer_idx=0).double()
    theirs.load_state_dict({name.replace("conv1d", "conv"): value for name, value in ours.state_dict().items()})
    x = torch.randn(S, B, H, dtype=torch.float64)
    expected = theirs(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(ours(x, None, None)[0], expected, rtol=1e-12, atol=1e-12)


def test_each_group_has_its_own_norm() -> None:
    norm = build(MODEL).decoder.layers["0"].mixer.norm
    x = torch.randn(3, 1, 24, dtype=torch.float64)
    scaled = torch.cat([x[..., :12], 100 * x[..., 12:]], dim=-1)
    torch.testing.assert_close(norm(scaled), norm(x), rtol=1e-3, atol=1e-3)


def test_first_weights_of_a_mixer() -> None:
    mamba = MambaConfig(num_heads=64, head_dim=6, state_dim=5, num_groups=2, conv_width=3)
    model = build(replace(MODEL, mamba=mamba), torch.float32)
    mixer = model.decoder.layers["3"].mixer
    decay, step = mixer.A_log.detach().exp(), F.softplus(mixer.dt_bias.detach())
    assert decay.min() >= 1 - 1e-6
    assert decay.max() <= 16 + 1e-5
    assert step.min() >= 1e-3 - 1e-6
    assert step.max() <= 0.1 + 1e-6
    assert step.log().mean() == pytest.approx(math.log(1e-2), abs=0.5)
    assert (mixer.D == 1).all()
    assert mixer.conv1d.weight.abs().max() <= 3**-0.5
    assert mixer.in_proj.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    assert mixer.out_proj.weight.detach().std() == pytest.approx(0.02 / 4**0.5, rel=0.1)


def test_the_future_does_not_reach_back() -> None:
    model = build(MODEL)
    tokens, positions = torch.arange(S)[None], torch.arange(S)[None]
    other = tokens.clone()
    other[0, 9:] += 7
    with torch.no_grad():
        logits, changed = model(tokens, positions), model(other, positions)
    torch.testing.assert_close(logits[:, :9], changed[:, :9], rtol=0, atol=0)
    assert not torch.allclose(logits[:, 9:], changed[:, 9:])


VARIED = BlocksConfig(
    mixing=("attention", "none", "linear", "attention"),
    feed_forward=("mlp", "linear", "mlp", "none"),
    ffn_hidden_size=(24, 0, 40, 0),
)


@pytest.mark.parametrize(
    "config",
    [
        MODEL,
        replace(MODEL, normalization="LayerNorm", tie_embeddings=True, activation="gelu"),
        replace(MODEL, blocks=VARIED, add_bias_linear=True),
        replace(MODEL, blocks=BlocksConfig(mixing=("short_conv", "attention", "short_conv", "short_conv"))),
    ],
    ids=["hybrid", "other-norm", "uneven", "short"],
)
def test_sizes_are_those_of_the_model(config: ModelConfig) -> None:
    model = build(config)
    assert parameter_count(config).total == sum(p.numel() for p in model.parameters())
    for number, size in enumerate(parameter_count(config).layers):
        assert size.total == sum(p.numel() for p in model.decoder.layers[str(number)].parameters())


def test_arithmetic_follows_the_layers() -> None:
    whole = training_flops(MODEL, 1)
    no_mlp = replace(MODEL, blocks=replace(MODEL.blocks, feed_forward=("none",) * 4))
    assert whole - training_flops(no_mlp, 1) == 6 * S * 3 * H * 24
    no_mixer = replace(MODEL, blocks=replace(MODEL.blocks, mixing=("none", "attention", "none", "mamba")))
    width = 24
    assert whole - training_flops(no_mixer, 1) == 6 * S * (H * (2 * width + 20 + 4) + width * H + 3 * width * 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parallel": ParallelConfig(context_parallel_size=2)}, "whole sequences"),
        ({"mamba": replace(MODEL.mamba, num_groups=3)}, "3 groups must divide 4 heads"),
        ({"num_layers": 5}, "describes [4] layers and the model has 5"),
    ],
    ids=["context", "groups", "depth"],
)
def test_builder_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(replace(MODEL, **change))
    assert message in str(error.value)
