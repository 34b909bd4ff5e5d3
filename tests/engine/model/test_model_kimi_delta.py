"""Kimi delta attention: the rule in chunks against the recurrence."""

import pytest
import torch
from test_model_state_space import B, S
from torch import Tensor
from torch.nn import functional as F

from primus.engine.model.ssm.delta_rule import gated_delta_rule
from primus.engine.model.ssm.kimi_rule import kimi_delta_rule


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
