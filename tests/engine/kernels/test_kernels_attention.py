"""Core attention: all forms equal the formula in fp64, grouped heads, masks, dropout; layer scaling protects fp16."""

import math

import pytest
import torch
from torch import Tensor

from primus.engine.kernels.attention import explicit_attention, fused_attention, sdpa_attention
from primus.engine.kernels.position_dropout import PositionDropout

FORMS = {"fused": fused_attention, "sdpa": sdpa_attention, "explicit": explicit_attention}


def heads(S: int = 7, B: int = 2, N: int = 4, G: int = 2, D: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((S, B, N, D), (S, B, G, D), (S, B, G, D))
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, blocked: Tensor) -> Tensor:
    repeat = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
    scores = torch.einsum("sbnd,tbnd->bnst", q, k) / math.sqrt(q.shape[-1])
    probabilities = scores.masked_fill(blocked, -torch.inf).softmax(-1)
    return torch.einsum("bnst,tbnd->sbnd", probabilities, v).flatten(2)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_the_formula(form: str, masked: bool, groups: int) -> None:
    q, k, v = heads(G=groups)
    S, B = q.shape[:2]
    blocked = torch.ones(S, S, dtype=torch.bool).triu(1)
    mask = None
    if masked:
        documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2]])
        mask = (blocked | (documents[:, :, None] != documents[:, None, :])).view(B, 1, S, S)
        blocked = mask
    dy = torch.randn(S, B, 24, dtype=torch.float64)
    actual, expected = FORMS[form](q, k, v, mask), formula(q, k, v, blocked)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    for a, e in zip(torch.autograd.grad(actual, (q, k, v), dy), torch.autograd.grad(expected, (q, k, v), dy), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("S", [1, 31, 128, 200, 257])
@pytest.mark.parametrize(("N", "G"), [(2, 2), (4, 1), (8, 2)])
def test_blocks_of_queries_equal_the_formula(S: int, N: int, G: int) -> None:
    q, k, v = heads(S=S, N=N, G=G, D=16)
    blocked = torch.ones(S, S, dtype=torch.bool).triu(1)
    dy = torch.randn(S, q.shape[1], N * q.shape[3], dtype=torch.float64)
    actual, expected = fused_attention(q, k, v, None), formula(q, k, v, blocked)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    for a, e in zip(torch.autograd.grad(actual, (q, k, v), dy), torch.autograd.grad(expected, (q, k, v), dy), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
@pytest.mark.parametrize("form", FORMS)
def test_the_last_queries_see_all_keys_before_them(form: str, masked: bool) -> None:
    q, k, v = heads(S=70)
    q = q[23:].detach().requires_grad_()
    blocked = torch.ones(70, 70, dtype=torch.bool).triu(1)[23:]
    mask = (blocked | (torch.arange(70) % 5 == 3)).view(1, 1, 47, 70) if masked else None
    dy = torch.randn(47, q.shape[1], 24, dtype=torch.float64)
    actual, expected = FORMS[form](q, k, v, mask), formula(q, k, v, blocked if mask is None else mask)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)
    for a, e in zip(torch.autograd.grad(actual, (q, k, v), dy), torch.autograd.grad(expected, (q, k, v), dy), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-13)


def test_large_scores_stay_finite() -> None:
    q, k, v = ((t.detach().float() * 60.0).requires_grad_() for t in heads(S=140, D=16))
    out = fused_attention(q, k, v, None)
    assert all(torch.isfinite(t).all() for t in (out, *torch.autograd.grad(out.sum(), (q, k, v))))


@pytest.mark.parametrize("form", FORMS)
def test_no_token_sees_the_future(form: str) -> None:
    q, k, v = heads()
    before = FORMS[form](q, k, v, None)
    k2, v2 = k.detach().clone(), v.detach().clone()
    k2[4:], v2[4:] = 100.0, 100.0
    torch.testing.assert_close(FORMS[form](q, k2, v2, None)[:4], before[:4])


def test_layer_scaling_changes_nothing_in_fp64_and_keeps_fp16_finite() -> None:
    q, k, v = heads()
    torch.testing.assert_close(
        explicit_attention(q, k, v, None, layer_scaling=12), explicit_attention(q, k, v, None), rtol=1e-13, atol=1e-13
    )
    large_q, large_k = (t.detach().half() * 0 + 220.0 for t in (q, k))
    plain = explicit_attention(large_q, large_k, v.detach().half(), None)
    scaled = explicit_attention(large_q, large_k, v.detach().half(), None, layer_scaling=8)
    assert not torch.isfinite(plain).all()
    assert torch.isfinite(scaled).all()


def test_softmax_in_fp32_lifts_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    softmax = torch.Tensor.softmax

    def spy(scores: Tensor, dim: int) -> Tensor:
        seen.append(scores.dtype)
        return softmax(scores, dim)

    monkeypatch.setattr(torch.Tensor, "softmax", spy)
    q, k, v = (t.detach().bfloat16() for t in heads())
    for wide in (False, True):
        assert explicit_attention(q, k, v, None, softmax_in_fp32=wide).dtype == torch.bfloat16
    assert seen == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("form", FORMS)
def test_dropout_keeps_the_expected_value(form: str) -> None:
    q, k, v = (t.detach() for t in heads(S=4))
    torch.manual_seed(0)
    masks = [PositionDropout(seed, 0.3, len(q)) if form == "explicit" else 0.3 for seed in range(1000)]
    mean = torch.stack([FORMS[form](q, k, v, None, dropout=mask) for mask in masks]).mean(0)
    torch.testing.assert_close(mean, FORMS[form](q, k, v, None), rtol=0.1, atol=0.1)
