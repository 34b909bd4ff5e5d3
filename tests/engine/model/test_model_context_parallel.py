"""Attention over divided sequences equals attention over whole ones, whichever way the ranks reach one another."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from primus.engine.config import DistConfig, ParallelConfig
from primus.engine.kernels.attention import sdpa_attention
from primus.engine.kernels.segments import Segments
from primus.engine.kernels.varied_attention import ScoreRule
from primus.engine.model.attention import ExplicitAttention, FusedAttention
from primus.engine.model.context_attention import ExchangedAttention, GatheredAttention, RingAttention
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Mesh, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams

S, B, N, G, D = 16, 2, 8, 4, 4
WAYS = ["p2p", "allgather", "a2a", "a2a+p2p"]


PLAIN = ScoreRule()


def attention(way: str, mesh: Mesh, dropout: float, rule: ScoreRule) -> nn.Module:
    streams = RandomStreams(1, mesh.coordinates)
    if way == "p2p":
        return RingAttention(mesh.cp, streams, dropout=dropout, rule=rule)
    if way == "allgather":
        return GatheredAttention(mesh.cp, streams, dropout=dropout, rule=rule)
    if way == "a2a":
        return ExchangedAttention(mesh.cp, whole_sequences(mesh, dropout, rule, (mesh.cp.index, mesh.cp.size)))
    share = mesh.cp_exchange.index, mesh.cp_exchange.size
    return ExchangedAttention(mesh.cp_exchange, RingAttention(mesh.cp_ring, streams, dropout=dropout, rule=rule, share=share))


def whole_sequences(mesh: Mesh, dropout: float, rule: ScoreRule, share: tuple[int, int] = (0, 1)) -> nn.Module:
    place: Any = SimpleNamespace(streams=RandomStreams(1, mesh.coordinates))
    if dropout:
        return ExplicitAttention(place, dropout=dropout, softmax_in_fp32=False, rule=rule, share=share)
    return FusedAttention(place, dropout=0.0, rule=rule, share=share)


def whole_inputs(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(S, B, N, D), (S, B, G, D), (S, B, G, D), (S, B, N * D)]
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype) for shape in shapes]


def documents_mask() -> Tensor:
    """Causal within documents: [B, 1, S, S], True where blocked."""
    starts = torch.zeros(B, S, dtype=torch.long)
    starts[0, 5:] = 1
    starts[0, 11:] = 2
    starts[1, 8:] = 1
    other = starts[:, :, None] != starts[:, None, :]
    return (other | torch.ones(S, S, dtype=torch.bool).triu_(1))[:, None]


def gradients(out: Tensor, inputs: list[Tensor], d_out: Tensor) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad(out, inputs, d_out)]


def run(rank: int, way: str, size: int, masked: bool, dtype: torch.dtype, dropout: float, rule: ScoreRule) -> list[Tensor]:
    parallel = ParallelConfig(context_parallel_size=size, hierarchical_context_parallel_sizes=(2, size // 2))
    mesh = build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    *inputs, d_out = (own_slice(x, size, rank, 0).contiguous() for x in whole_inputs(dtype))
    inputs = [x.requires_grad_() for x in inputs]
    out = attention(way, mesh, dropout, rule)(*inputs, documents_mask() if masked else None)
    return gradients(out, inputs, d_out)


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_equals_the_whole_sequence(way: str, size: int, masked: bool) -> None:
    check(way, size, masked, torch.float64, 1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_stays_close(way: str) -> None:
    check(way, 4, False, torch.bfloat16, 4e-2)


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize(("way", "size"), [("p2p", 2), ("p2p", 4), ("a2a", 2), ("a2a+p2p", 4)])
def test_dropout_drops_what_it_drops_of_the_whole_sequence(way: str, size: int, masked: bool) -> None:
    whole = whole_sequences(single_mesh(), 0.4, PLAIN)
    check(way, size, masked, torch.float64, 1e-12, whole, dropout=0.4)


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "documents"])
@pytest.mark.parametrize("rule", [ScoreRule(window=3, cap=0.9), ScoreRule(chunk=6)], ids=["window", "chunk"])
@pytest.mark.parametrize("way", WAYS)
def test_windows_chunks_and_caps(way: str, rule: ScoreRule, masked: bool) -> None:
    place: Any = SimpleNamespace(streams=RandomStreams(1, single_mesh().coordinates))
    whole = ExplicitAttention(place, dropout=0.0, softmax_in_fp32=False, rule=rule)
    check(way, 4, masked, torch.float64, 1e-12, whole, rule=rule)


def check(
    way: str,
    size: int,
    masked: bool,
    dtype: torch.dtype,
    tolerance: float,
    whole_attention: Callable[..., Tensor] = sdpa_attention,
    dropout: float = 0.0,
    rule: ScoreRule = PLAIN,
) -> None:
    *inputs, d_out = whole_inputs(dtype)
    inputs = [x.requires_grad_() for x in inputs]
    expected = gradients(whole_attention(*inputs, documents_mask() if masked else None), inputs, d_out)
    results: list[list[Any]] = run_ranks(run, size, way, size, masked, dtype, dropout, rule)
    for rank, parts in enumerate(results):
        for part, whole in zip(parts, expected, strict=True):
            torch.testing.assert_close(part, own_slice(whole, size, rank, 0), rtol=tolerance, atol=tolerance)


def packed_rank(rank: int, way: str, rule: ScoreRule) -> list[Tensor]:
    parallel = ParallelConfig(context_parallel_size=4, hierarchical_context_parallel_sizes=(2, 2))
    mesh = build_mesh(parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    *inputs, d_out = (own_slice(x, 4, rank, 0).contiguous() for x in whole_inputs(torch.float64))
    inputs = [x.requires_grad_() for x in inputs]
    return gradients(attention(way, mesh, 0.0, rule)(*inputs, samples()), inputs, d_out)


def samples() -> Segments:
    return Segments((0, 5, 11, S), torch.device("cpu"))


@pytest.mark.parametrize("rule", [PLAIN, ScoreRule(window=3, cap=0.9), ScoreRule(chunk=4)], ids=["plain", "window", "chunk"])
@pytest.mark.parametrize("way", WAYS)
def test_packed_samples_are_attended_to_alone_by_every_way(way: str, rule: ScoreRule) -> None:
    *inputs, d_out = whole_inputs(torch.float64)
    inputs = [x.requires_grad_() for x in inputs]
    expected = gradients(whole_sequences(single_mesh(), 0.0, rule)(*inputs, samples()), inputs, d_out)
    for rank, parts in enumerate(run_ranks(packed_rank, 4, way, rule)):
        for part, whole in zip(parts, expected, strict=True):
            torch.testing.assert_close(part, own_slice(whole, 4, rank, 0), rtol=1e-12, atol=1e-12)
