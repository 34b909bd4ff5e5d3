"""Gated delta nets: the rule in chunks against the recurrence, the layer against transformers', sizes."""

from dataclasses import replace

import pytest
import torch
from test_model_state_space import MODEL, B, H, S, build
from torch import Tensor
from torch.nn import functional as F
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from primus.engine.config.blocks import BlocksConfig
from primus.engine.config.delta import DeltaConfig
from primus.engine.model.size import parameter_count
from primus.engine.model.ssm.delta_rule import gated_delta_rule

DELTA = replace(
    MODEL,
    delta=DeltaConfig(num_key_heads=2, num_value_heads=4, key_head_dim=6, value_head_dim=5, conv_width=3),
    blocks=BlocksConfig(mixing=("gated_delta", "attention", "gated_delta", "gated_delta")),
    norm_epsilon=1e-6,
)


def recurrence(q: Tensor, k: Tensor, v: Tensor, log: Tensor, write: Tensor) -> Tensor:
    """Token by token, by the definition."""
    state, out = q.new_zeros(*q.shape[1:], v.shape[-1]), []
    for q_t, k_t, v_t, log_t, write_t in zip(q, k, v, log, write, strict=True):
        state = state * torch.exp(log_t)[..., None, None]
        new = (v_t - torch.einsum("bnd,bndv->bnv", k_t, state)) * write_t[..., None]
        state = state + torch.einsum("bnd,bnv->bndv", k_t, new)
        out.append(torch.einsum("bnd,bndv->bnv", q_t, state))
    return torch.stack(out)


@pytest.mark.parametrize("chunk", [1, 4, 13, 64])
def test_chunks_of_the_rule_are_the_recurrence(chunk: int) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, S, B, 3, 4, generator=generator, dtype=torch.float64)
    v = torch.randn(S, B, 3, 5, generator=generator, dtype=torch.float64)
    log, write = torch.rand(2, S, B, 3, generator=generator, dtype=torch.float64)
    inputs = [x.detach().requires_grad_() for x in (q, F.normalize(k, dim=-1), v, -16 * log, write)]
    expected, actual = recurrence(*inputs), gated_delta_rule(*inputs, chunk=chunk)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    for ours, theirs in zip(*(torch.autograd.grad((y * weight).sum(), inputs) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_layer_is_that_of_transformers() -> None:
    """Theirs keeps the rows of a key head and its value heads together, ours all queries, all keys and so on."""
    d = DELTA.delta
    ours = build(DELTA).decoder.layers["0"].self_attention
    theirs = Qwen3NextGatedDeltaNet(
        Qwen3NextConfig(
            hidden_size=H,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=6,
            linear_value_head_dim=5,
            linear_conv_kernel_dim=3,
            rms_norm_eps=1e-6,
        ),
        layer_idx=0,
    ).double()
    q, k, v, z, b, a = ours.in_proj.weight.detach().split(list(d.blocks))
    qkvz = [part.unflatten(0, (2, -1)) for part in (q, k, v, z)]
    weights = {
        "in_proj_qkvz.weight": torch.cat(qkvz, dim=1).flatten(0, 1),
        "in_proj_ba.weight": torch.cat([part.unflatten(0, (2, -1)) for part in (b, a)], dim=1).flatten(0, 1),
        "conv1d.weight": ours.conv1d.weight,
        "A_log": ours.A_log,
        "dt_bias": ours.dt_bias,
        "norm.weight": ours.out_norm.weight,
        "out_proj.weight": ours.out_proj.weight,
    }
    theirs.load_state_dict(weights)
    x = torch.randn(S, B, H, dtype=torch.float64)
    expected = theirs(x.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(ours(x)[0], expected, rtol=1e-5, atol=1e-6)


def test_sizes_are_those_of_the_model() -> None:
    for config in (DELTA, replace(DELTA, normalization="LayerNorm")):
        assert parameter_count(config).total == sum(p.numel() for p in build(config).parameters())
