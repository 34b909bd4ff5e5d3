"""Parts of attention add up to the whole, forward and backward, in every form."""

import pytest
import torch
from torch import Tensor

from primus.engine.kernels.block_attention import Part, explicit_part, explicit_part_backward, merge_, part, part_backward
from primus.engine.kernels.position_dropout import PositionDropout

B, N, S, D = 2, 3, 8, 4


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(B, N, S, D, dtype=torch.float64, generator=generator).to(dtype) for _ in range(4))


def causal() -> Tensor:
    return torch.ones(S, S, dtype=torch.bool).triu_(1)


def reference(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor, d_out: Tensor) -> tuple[Tensor, ...]:
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    out = ((q @ k.mT) / D**0.5).masked_fill(blocked, -torch.inf).softmax(-1) @ v
    return (out, *torch.autograd.grad(out, (q, k, v), d_out))


@pytest.mark.parametrize("form", [(part, part_backward), (explicit_part, explicit_part_backward)], ids=["picked", "explicit"])
def test_parts_over_halves_of_the_keys_add_up(form) -> None:
    q, k, v, d_out = inputs()
    attend, attend_backward = form
    mask = causal()
    mask[5:, :2] = True  # rows beyond a document's start
    halves = [slice(0, S // 2), slice(S // 2, S)]
    whole = Part(torch.zeros_like(q), torch.full((B, N, S), -torch.inf, dtype=q.dtype))
    for keys in halves:
        merge_(whole, attend(q, k[:, :, keys], v[:, :, keys], blocked=mask[None, None, :, keys]))
    out, dq, dk, dv = reference(q, k, v, mask, d_out)
    torch.testing.assert_close(whole.out, out, rtol=1e-12, atol=1e-12)
    parts = [attend_backward(d_out, whole, q, k[:, :, h], v[:, :, h], blocked=mask[None, None, :, h]) for h in halves]
    torch.testing.assert_close(sum(p[0] for p in parts), dq, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([p[1] for p in parts], 2), dk, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([p[2] for p in parts], 2), dv, rtol=1e-12, atol=1e-12)


def test_dropped_parts_add_up_to_the_dropped_whole() -> None:
    q, k, v, d_out = inputs()
    mask, dropout = causal(), PositionDropout(seed=5, probability=0.4, length=S)
    factors = dropout.factors(q, torch.arange(S), torch.arange(S))
    q_, k_, v_ = (x.clone().requires_grad_() for x in (q, k, v))
    out = (((q_ @ k_.mT) / D**0.5).masked_fill(mask, -torch.inf).softmax(-1) * factors) @ v_
    expected = (out, *torch.autograd.grad(out, (q_, k_, v_), d_out))
    whole, keys = Part(torch.zeros_like(q), torch.full((B, N, S), -torch.inf, dtype=q.dtype)), torch.arange(S).chunk(2)
    parts = [(k[:, :, h], v[:, :, h], {"blocked": mask[None, None, :, h], "factors": factors[..., h]}) for h in keys]
    for k_part, v_part, rule in parts:
        merge_(whole, part(q, k_part, v_part, **rule))
    dq, dk, dv = zip(*(part_backward(d_out, whole, q, k_part, v_part, **rule) for k_part, v_part, rule in parts), strict=True)
    for ours, theirs in zip((whole.out, sum(dq), torch.cat(dk, 2), torch.cat(dv, 2)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_fused_form_is_the_formula(dtype: torch.dtype, tolerance: float, is_causal: bool) -> None:
    q, k, v, d_out = inputs(dtype)
    mask = causal() if is_causal else None
    ours, formula = part(q, k, v, blocked=None, is_causal=is_causal), explicit_part(q, k, v, blocked=mask)
    torch.testing.assert_close(ours.out, formula.out.to(dtype), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours.log_sum, formula.log_sum, rtol=tolerance, atol=tolerance)
    gradients = part_backward(d_out, ours, q, k, v, blocked=None, is_causal=is_causal)
    expected = explicit_part_backward(d_out, formula, q, k, v, blocked=mask)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_a_row_that_sees_nothing_is_zero_and_stays_out_of_the_sum() -> None:
    q, k, v, _ = inputs()
    everything = torch.ones(S, S, dtype=torch.bool)[None, None]
    nothing = part(q, k, v, blocked=everything)
    assert nothing.out.eq(0).all()
    seen = part(q, k, v, blocked=causal()[None, None])
    whole = Part(nothing.out.clone(), nothing.log_sum.clone())
    merge_(whole, nothing)
    merge_(whole, seen)
    torch.testing.assert_close(whole.out, seen.out)
