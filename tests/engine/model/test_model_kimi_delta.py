"""Kimi delta attention: the rule in chunks against the recurrence, the layer against transformers', sizes."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from test_model_state_space import MODEL, B, H, S, build
from torch import Tensor
from torch.nn import functional as F
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention

from primus.engine.config.blocks import BlocksConfig
from primus.engine.config.delta import DeltaConfig
from primus.engine.config.linears import linear_names
from primus.engine.config.model import ModelConfig
from primus.engine.kernels.segments import Segments
from primus.engine.model.flops import training_flops
from primus.engine.model.size import parameter_count
from primus.engine.model.ssm.delta_rule import gated_delta_rule
from primus.engine.model.ssm.kimi_rule import kimi_delta_rule

KIMI = replace(
    MODEL,
    delta=DeltaConfig(num_key_heads=4, num_value_heads=4, key_head_dim=6, value_head_dim=6, conv_width=3),
    blocks=BlocksConfig(mixing=("kimi_delta", "attention", "kimi_delta", "kimi_delta")),
    norm_epsilon=1e-6,
)
UNEVEN = replace(KIMI, delta=DeltaConfig(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=5))


def recurrence(q: Tensor, k: Tensor, v: Tensor, log: Tensor, write: Tensor) -> Tensor:
    """Token by token, by the definition."""
    state, out = q.new_zeros(*q.shape[1:], v.shape[-1]), []
    for q_t, k_t, v_t, log_t, write_t in zip(q, k, v, log, write, strict=True):
        state = state * torch.exp(log_t)[..., None]
        new = (v_t - torch.einsum("bnd,bndv->bnv", k_t, state)) * write_t[..., None]
        state = state + torch.einsum("bnd,bnv->bndv", k_t, new)
        out.append(torch.einsum("bnd,bndv->bnv", q_t, state))
    return torch.stack(out)


def drawn(strength: float, length: int = S) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, length, B, 3, 4, generator=generator, dtype=torch.float64)
    v = torch.randn(length, B, 3, 5, generator=generator, dtype=torch.float64)
    log = -strength * torch.rand(length, B, 3, 4, generator=generator, dtype=torch.float64)
    write = torch.rand(length, B, 3, generator=generator, dtype=torch.float64)
    return [x.detach().requires_grad_() for x in (q, F.normalize(k, dim=-1), v, log, write)]


@pytest.mark.parametrize(("chunk", "strength"), [(1, 1.0), (4, 1.0), (16, 1.0), (64, 1.0), (4, 16.0), (16, 1e4)])
def test_chunks_of_the_rule_are_the_recurrence(chunk: int, strength: float) -> None:
    inputs = drawn(strength)
    expected, actual = recurrence(*inputs), kimi_delta_rule(*inputs, chunk=chunk)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_one_decay_for_all_channels_is_the_gated_rule() -> None:
    q, k, v, log, write = drawn(16.0)
    expected = gated_delta_rule(q, k, v, log[..., 0], write)
    torch.testing.assert_close(kimi_delta_rule(q, k, v, log[..., :1].expand_as(log), write), expected, rtol=1e-12, atol=1e-12)


def test_decays_from_none_to_all_stay_finite_and_exact_in_fp32() -> None:
    """Some channels forget everything at once, others nothing: the sums of a chunk are thousands apart."""
    inputs = drawn(1.0, length=130)
    with torch.no_grad():
        inputs[3] *= torch.tensor([0.0, 1e-4, 50.0, 1e4], dtype=torch.float64)
    expected, narrow = recurrence(*inputs), [x.detach().float().requires_grad_() for x in inputs]
    actual = kimi_delta_rule(*narrow)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
    ours, theirs = (torch.autograd.grad(y.square().sum(), x) for y, x in ((actual, narrow), (expected, inputs)))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_layer_is_that_of_transformers() -> None:
    """Theirs has one norm before it, of which ours has two, and no bias of the output's gate."""
    d = KIMI.delta
    ours = build(KIMI).decoder.layers["0"]
    mixer = ours.self_attention
    config = KimiLinearConfig(
        hidden_size=H, num_hidden_layers=1, linear_num_heads=4, linear_head_dim=6, linear_conv_kernel_dim=3, rms_norm_eps=1e-6
    )
    theirs = KimiLinearDeltaAttention(config, layer_idx=0).double()
    q, k, v = mixer.in_proj.weight.split(d.read)
    decay, gate, write = mixer.gates_down_proj.weight.split(d.gates_down)
    weights = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "conv1d.weight": mixer.conv1d.weight,
        "b_proj.weight": write,
        "forget_gate.f_a_proj.weight": decay,
        "forget_gate.f_b_proj.weight": mixer.decay_up_proj.weight,
        "forget_gate.A_log": mixer.A_log[None, None, :, None],
        "forget_gate.dt_bias": mixer.dt_bias,
        "g_a_proj.weight": gate,
        "g_b_proj.weight": mixer.out_gate_up_proj.weight,
        "o_norm.weight": mixer.out_norm.weight,
        "o_proj.weight": mixer.out_proj.weight,
    }
    theirs.load_state_dict(weights)
    x = torch.randn(S, B, H, dtype=torch.float64)
    expected = theirs(F.rms_norm(x, (H,), eps=1e-6).transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(mixer(x)[0], expected, rtol=1e-5, atol=1e-6)
    alone = replace(KIMI, blocks=replace(KIMI.blocks, feed_forward=("none",) * 4))
    torch.testing.assert_close(build(alone).decoder.layers["0"](x, None, None), x + mixer(x)[0])


def test_each_norm_has_its_projections_and_the_gate_its_bias() -> None:
    mixer, x = build(UNEVEN).decoder.layers["0"].self_attention, torch.randn(S, B, H, dtype=torch.float64)
    with torch.no_grad():
        before = mixer(x)[0]
        mixer.in_norm.weight *= 2
        mixer.in_proj.weight /= 2
        mixer.gate_norm.weight *= 4
        mixer.gates_down_proj.weight /= 4
        torch.testing.assert_close(mixer(x)[0], before, rtol=1e-12, atol=1e-12)
        mixer.out_gate_up_proj.bias.fill_(-50.0)
        assert mixer(x)[0].abs().max() < 1e-12


def test_packed_samples_begin_with_no_state_and_no_tokens_before_them() -> None:
    mixer, x = build(UNEVEN).decoder.layers["0"].self_attention, torch.randn(S, 1, H, dtype=torch.float64)
    bounds = (0, 2, 9, S)
    packed, _ = mixer(x, mask=Segments(bounds, x.device))
    alone = torch.cat([mixer(x[start:stop])[0] for start, stop in pairwise(bounds)])
    torch.testing.assert_close(packed, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", [KIMI, UNEVEN, replace(UNEVEN, normalization="LayerNorm")])
def test_sizes_are_those_of_the_model(config: ModelConfig) -> None:
    model = build(config)
    assert parameter_count(config).total == sum(p.numel() for p in model.parameters())
    d, mixer = config.delta, model.decoder.layers["0"].self_attention
    linears = [name for name, _ in mixer.named_modules() if name.endswith("_proj")]
    names = [f"decoder.layers.0.self_attention.{name}" for name in linears]
    assert set(names) == {name for name in linear_names(config) if name.startswith("decoder.layers.0.self")}
    products = sum(mixer.get_submodule(name).weight.numel() for name in linears) + 4 * d.values * d.key_head_dim
    without = replace(config, blocks=replace(config.blocks, mixing=("none", "attention", "kimi_delta", "kimi_delta")))
    assert training_flops(config, 1) - training_flops(without, 1) == 6 * S * products
