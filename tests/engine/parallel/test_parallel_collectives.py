"""Every collective's forward and backward against the one-process formula, in float64."""

from collections.abc import Callable

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from primus.engine.config import DistConfig, ParallelConfig
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group, build_mesh

N = 4


def world(rank: int) -> Group:
    return build_mesh(ParallelConfig(tensor_model_parallel_size=N), DistConfig(), torch.device("cpu")).tp


def inputs() -> tuple[Tensor, Tensor]:
    """One input and one upstream gradient a rank."""
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(N, 8, 3, 4, dtype=torch.float64, generator=generator) for _ in range(2))  # type: ignore[return-value]


def forward_and_backward(rank: int, name: str, options: dict[str, bool]) -> tuple[Tensor, Tensor]:
    group = world(rank)
    x = inputs()[0][rank].requires_grad_()
    y = getattr(collectives, name)(x, group, **options)
    y.backward(upstream(y.shape, rank))
    assert x.grad is not None
    return y.detach(), x.grad


def upstream(shape: torch.Size, rank: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


Formula = Callable[[list[Tensor], int], Tensor]


def rows(x: Tensor, rank: int) -> Tensor:
    return x.chunk(N)[rank]


FORWARD: dict[str, Formula] = {
    "copy_to_group": lambda xs, r: xs[r],
    "sum_forward": lambda xs, r: sum(xs),  # type: ignore[arg-type, return-value]
    "gather_sequence": lambda xs, r: torch.cat(xs),
    "gather_last_dim": lambda xs, r: torch.cat(xs, dim=-1),
    "reduce_scatter_sequence": lambda xs, r: rows(sum(xs), r),  # type: ignore[arg-type]
    "scatter_sequence": lambda xs, r: rows(xs[r], r),
}
BACKWARD: dict[tuple[str, bool | None], Formula] = {
    ("copy_to_group", None): lambda gs, r: sum(gs),  # type: ignore[arg-type, return-value]
    ("sum_forward", None): lambda gs, r: gs[r],
    ("gather_sequence", True): lambda gs, r: rows(sum(gs), r),  # type: ignore[arg-type]
    ("gather_sequence", False): lambda gs, r: rows(gs[r], r),
    ("gather_last_dim", True): lambda gs, r: sum(gs).chunk(N, -1)[r],  # type: ignore[attr-defined]
    ("gather_last_dim", False): lambda gs, r: gs[r].chunk(N, -1)[r],
    ("reduce_scatter_sequence", None): lambda gs, r: torch.cat(gs),
    ("scatter_sequence", None): lambda gs, r: torch.cat(gs),
}


@pytest.mark.parametrize(("name", "partial"), list(BACKWARD))
def test_forward_and_backward_match_the_formula(name: str, partial: bool | None) -> None:
    options = {} if partial is None else {"partial_grad": partial}
    results = run_ranks(forward_and_backward, N, name, options)
    xs = list(inputs()[0])
    for rank, (y, grad) in enumerate(results):
        torch.testing.assert_close(y, FORWARD[name](xs, rank), rtol=1e-12, atol=1e-12)
        gs = [upstream(y.shape, r) for r in range(N)]
        torch.testing.assert_close(grad, BACKWARD[name, partial](gs, rank), rtol=1e-12, atol=1e-12)


def test_group_of_one_returns_its_input() -> None:
    x = torch.randn(2, 2)
    alone = Group((0,), 0)
    for name in FORWARD:
        assert getattr(collectives, name)(x, alone) is x


def _fails_on_rank_two(rank: int) -> None:
    if rank == 2:
        raise ValueError("rank two breaks")
    world(rank)


def test_a_failing_rank_shows_its_own_traceback() -> None:
    with pytest.raises(AssertionError, match="rank two breaks"):
        run_ranks(_fails_on_rank_two, N)
