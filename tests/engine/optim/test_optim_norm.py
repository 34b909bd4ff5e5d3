"""The global norm, clipping and the count of zeros."""

import math

import pytest
import torch
from ranks import run_ranks

from primus.engine.config import DistConfig, ParallelConfig
from primus.engine.optim.norm import clip_divisor, count_zeros, global_norm
from primus.engine.parallel.mesh import build_mesh

CPU = torch.device("cpu")


@pytest.mark.parametrize("sizes", [(1,), (4096,), (4095, 4097), (3 * 4096 + 5, 2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_norm_equals_the_sum_of_squares(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    flats = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    exact = math.sqrt(sum(x * x for flat in flats for x in flat.double().tolist()))
    assert global_norm(flats, (), CPU) == pytest.approx(exact, rel=1e-14 if dtype is torch.float64 else 1e-6)


def test_float32_squares_do_not_drift_over_millions_of_elements() -> None:
    flat = torch.randn(8_000_000, generator=torch.Generator().manual_seed(1))
    assert global_norm([flat], (), CPU) == pytest.approx(float(flat.double().norm()), rel=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_element_anywhere_shows_in_the_norm(bad: float) -> None:
    for place in (0, 4095, 4096, 9999):
        flat = torch.ones(10_000)
        flat[place] = bad
        assert not math.isfinite(global_norm([flat], (), CPU))


def test_copies_add_nothing_unless_they_are_bad() -> None:
    flat, copy = torch.ones(9), torch.full((5,), 7.0)
    assert global_norm([flat], (), CPU, copies=[copy]) == 3.0
    copy[3] = math.inf
    assert math.isnan(global_norm([flat], (), CPU, copies=[copy]))


def test_nothing_has_norm_zero_and_no_zeros() -> None:
    assert global_norm([], (), CPU) == 0.0
    assert count_zeros([], 0, (), CPU) == 0


def test_zeros_are_counted_without_padding() -> None:
    flats = [torch.tensor([0.0, 1.0, 0.0]), torch.tensor([-0.0, 2.0, 0.0, 0.0])]
    assert count_zeros(flats, 5, (), CPU) == 3


@pytest.mark.parametrize(
    ("norm", "limit", "divisor"),
    [
        (2.0, 1.0, 2.0 + 1e-6),
        (0.5, 1.0, 1.0),
        (1.0, 1.0, 1.0 + 1e-6),
        (1e9, 0.0, 1.0),
        (1e9, -1.0, 1.0),
        (math.inf, 1.0, math.inf),
    ],
)
def test_only_norms_above_the_limit_are_divided(norm: float, limit: float, divisor: float) -> None:
    assert clip_divisor(norm, limit) == divisor


def _norm_on_rank(rank: int) -> tuple[float, int]:
    mesh = build_mesh(ParallelConfig(tensor_model_parallel_size=2), DistConfig(), CPU)
    flats = [torch.tensor([float(rank), 3.0], dtype=torch.float64)] if rank < 2 else []
    return global_norm(flats, (mesh.dp, mesh.mp), CPU), count_zeros(flats, 2 * len(flats), (mesh.dp, mesh.mp), CPU)


def test_norm_and_count_sum_over_every_group() -> None:
    assert run_ranks(_norm_on_rank, 4) == [(math.sqrt(0 + 9 + 1 + 9), 1)] * 4
