"""Packed samples: attention of a sequence of several is that of each alone, and nothing leaks from one to another."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from primus.engine.kernels.segments import Segments
from primus.engine.kernels.varied_attention import ScoreRule
from primus.engine.model.attention import ExplicitAttention, FusedAttention

B, N, G, D, V = 1, 4, 2, 8, 6
BOUNDS = (0, 1, 150, 155, 300)
RULES = [ScoreRule(), ScoreRule(window=3), ScoreRule(chunk=7), ScoreRule(cap=0.7), ScoreRule(chunk=40, window=9, cap=1.5)]
CPU = torch.device("cpu")


def core(name: str, rule: ScoreRule) -> nn.Module:
    place: Any = SimpleNamespace(streams=None)
    if name == "fused":
        return FusedAttention(place, dropout=0.0, rule=rule)
    return ExplicitAttention(place, dropout=0.0, softmax_in_fp32=False, rule=rule)


def heads(S: int, K: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(S, B, N, D), (K, B, G, D), (K, B, G, V), (N,)]
    return [torch.randn(shape, dtype=torch.float64, generator=draw).requires_grad_() for shape in shapes]


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()
    return [out, *torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)]


@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", ["fused", "explicit"])
def test_each_sample_is_attended_to_alone(name: str, rule: ScoreRule, has_sinks: bool) -> None:
    attention = core(name, rule)
    inputs = heads(300, 300)
    *qkv, sink = inputs
    packed = attention(*qkv, Segments(BOUNDS, CPU), sink if has_sinks else None)
    alone = [attention(*(x[start:stop] for x in qkv), None, sink if has_sinks else None) for start, stop in pairwise(BOUNDS)]
    for ours, expected in zip(with_gradients(packed, inputs), with_gradients(torch.cat(alone), inputs), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", ["fused", "explicit"])
@pytest.mark.parametrize(("first", "stop"), [(0, 100), (100, 200), (150, 155), (200, 300)])
def test_a_slice_of_a_sequence_sees_the_sample_that_it_cuts(first: int, stop: int, name: str, rule: ScoreRule) -> None:
    q, k, v, _ = heads(300, 300)
    whole = core(name, rule)(q, k, v, Segments(BOUNDS, CPU))
    part = core(name, rule)(q[first:stop], k[:stop], v[:stop], Segments(BOUNDS, CPU))
    torch.testing.assert_close(part, whole[first:stop], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["fused", "explicit"])
def test_nothing_leaks_from_a_sample_to_another(name: str) -> None:
    q, k, v, _ = heads(300, 300)
    before = core(name, ScoreRule())(q, k, v, Segments(BOUNDS, CPU))
    others = [torch.cat((x[:1], x[1:150] + 5.0, x[150:])) for x in (q, k, v)]
    after = core(name, ScoreRule())(*others, Segments(BOUNDS, CPU))
    assert not torch.equal(before[1:150], after[1:150])
    assert torch.equal(before[:1], after[:1])
    assert torch.equal(before[150:], after[150:])
    assert torch.autograd.grad(before[150:].sum(), k)[0][:150].count_nonzero() == 0


def test_a_mask_of_samples_says_the_same() -> None:
    q, k, v, _ = heads(300, 300)
    rule, segments, rows = ScoreRule(chunk=7), Segments(BOUNDS, CPU), torch.arange(300)
    attention = core("explicit", rule)
    masked = core("explicit", ScoreRule())(q, k, v, segments.blocked(rule, rows, rows)[None, None])
    torch.testing.assert_close(attention(q, k, v, segments), masked, rtol=1e-12, atol=1e-12)
    assert segments.position[148:157].tolist() == [147, 148, 0, 1, 2, 3, 4, 0, 1]
    assert segments.sample[148:157].tolist() == [1, 1, 2, 2, 2, 2, 2, 3, 3]


def test_samples_without_tokens_are_none() -> None:
    q, k, v, _ = heads(12, 12)
    attention = core("fused", ScoreRule())
    assert torch.equal(attention(q, k, v, Segments((0, 5, 5, 12), CPU)), attention(q, k, v, Segments((0, 5, 12), CPU)))
