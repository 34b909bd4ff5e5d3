"""The feed-forward parts of experts as one function equal their formula, with biases and without, whatever experts get."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from primus.engine.kernels import expert_mlp as module
from primus.engine.kernels.activation import gated_variant, quick_geglu, swiglu
from primus.engine.kernels.expert_mlp import ExpertForms, expert_mlp, expert_mlp_reference
from primus.engine.kernels.weighted_activation import AnyWeighted, WeightedGate

COUNTS = [3, 0, 5, 1]
CLAMPED = gated_variant("quick_geglu", clamp=1.0, offset=1.0)
FORMS = {swiglu: WeightedGate(1.0), quick_geglu: WeightedGate(1.702), CLAMPED: AnyWeighted(CLAMPED)}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", FORMS, ids=["swiglu", "quick_geglu", "clamped"])
def test_outputs_and_gradients_equal_the_formula(
    monkeypatch: pytest.MonkeyPatch, grouped: bool, biased: bool, activation: Callable[[Tensor], Tensor]
) -> None:
    monkeypatch.setattr(module, "_CACHED_ROWS", 4)  # some experts together, some not
    random = torch.Generator().manual_seed(3)
    shapes = [(9, 6), (9,), (4, 8, 6), (4, 6, 4), (4, 8), (4, 6)]
    inputs = [torch.randn(shape, dtype=torch.float64, generator=random).requires_grad_() for shape in shapes]
    x, p, w1, w2, *both = inputs if biased else inputs[:4]
    biases = (both[0], both[1]) if biased else None
    ours = expert_mlp(x, p, w1, w2, COUNTS, ExpertForms(FORMS[activation], grouped=grouped), biases=biases)
    theirs = expert_mlp_reference(x, p, w1, w2, COUNTS, activation, biases=biases)
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    dy = torch.randn(9, 6, dtype=torch.float64, generator=random)
    of = [x, p, w1, w2, *both]
    for mine, right in zip(torch.autograd.grad(ours, of, dy), torch.autograd.grad(theirs, of, dy), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("grouped", [False, True])
def test_frozen_experts_pass_gradients_on(grouped: bool) -> None:
    random = torch.Generator().manual_seed(3)
    x, p, w1, w2 = (torch.randn(s, dtype=torch.float64, generator=random) for s in [(9, 6), (9,), (4, 8, 6), (4, 6, 4)])
    x.requires_grad_()
    ours = expert_mlp(x, p, w1, w2, COUNTS, ExpertForms(FORMS[swiglu], grouped=grouped))
    theirs = expert_mlp_reference(x, p, w1, w2, COUNTS, swiglu)
    mine, right = (torch.autograd.grad(out.square().sum(), x)[0] for out in (ours, theirs))
    torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("rows_at_once", "together"), [(0, [[3], [0], [5], [1]]), (4, [[3, 0, 5], [1]]), (9, [[3, 0, 5, 1]]), (99, [[3, 0, 5, 1]])]
)
def test_experts_are_worked_on_together_until_there_are_enough_rows(rows_at_once: int, together: list[list[int]]) -> None:
    stretches = module._stretches(COUNTS, rows_at_once)
    assert [part for _, _, part in stretches] == together
    assert [row for rows, _, _ in stretches for row in range(rows.start, rows.stop)] == list(range(9))
    assert [expert for _, experts, _ in stretches for expert in range(experts.start, experts.stop)] == [0, 1, 2, 3]
