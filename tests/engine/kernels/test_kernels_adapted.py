"""Products with adapters equal their formulas, forward and backward, and keep nothing for frozen weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from primus.engine.kernels.activation import ACTIVATIONS
from primus.engine.kernels.adapted_expert_mlp import Pair, adapted_expert_mlp
from primus.engine.kernels.adapted_linear import adapted_linear, adapted_linear_reference, add_product
from primus.engine.kernels.expert_mlp import ExpertForms, expert_mlp_reference
from primus.engine.kernels.linear import linear
from primus.engine.kernels.row_dropout import kept as kept_of_rows
from primus.engine.kernels.weighted_activation import weighted_activation


def random(*shape: int, seed: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def gradients(y: Tensor, wanted: list[Tensor]) -> list[Tensor | None]:
    return list(torch.autograd.grad((y * y.detach().cos()).sum(), wanted, allow_unused=True))


@pytest.mark.parametrize("drops", [False, True])
def test_an_adapted_product_equals_its_formula(drops: bool) -> None:
    x, a, b = random(5, 2, 6, seed=1), random(3, 6, seed=2), random(4, 3, seed=3)
    weight, bias = random(4, 6, seed=4, grad=False), random(4, seed=5, grad=False)
    kept = (random(5, 2, 6, seed=6, grad=False) > 0).double()
    results = []
    for form in (adapted_linear, adapted_linear_reference):
        y = form(x, x * kept if drops else None, weight, bias, a, b, 0.7)
        results.append([y, *gradients(y, [x, a, b])])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


def test_a_product_is_added_where_the_sum_lies() -> None:
    x, h, b = random(5, 4, seed=1), random(5, 3, seed=2), random(4, 3, seed=3)
    frozen = random(4, 4, seed=4, grad=False)
    y = linear(x, frozen)
    both = add_product(y, h, b, 0.5)
    assert both.data_ptr() == y.data_ptr()
    plain = x @ frozen.t() + 0.5 * h @ b.t()
    torch.testing.assert_close(both, plain)
    for ours, theirs in zip(gradients(both, [x, h, b]), gradients(plain, [x, h, b]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shares", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("adapted", ["both", "first", "last"])
def test_adapted_experts_equal_experts_of_merged_matrices(shares: bool, biased: bool, adapted: str) -> None:
    counts, count = [3, 0, 4], 1 if shares else 3
    x, p = random(7, 4, seed=1), random(7, seed=2)
    w1, w2 = random(3, 10, 4, seed=3, grad=False), random(3, 4, 5, seed=4, grad=False)
    biases = (random(3, 10, seed=5, grad=False), random(3, 4, seed=6, grad=False)) if biased else None
    first = Pair(random(count, 2, 4, seed=7), random(count, 10, 2, seed=8), 0.6)
    last = Pair(random(count, 2, 5, seed=9), random(count, 4, 2, seed=10), 0.6)
    pairs = first if adapted != "last" else None, last if adapted != "first" else None
    forms = ExpertForms(weighted_activation("swiglu", "portable"))
    ours = adapted_expert_mlp(x, p, (w1, w2), pairs, counts, forms, biases=biases)
    merged = [w if pair is None else w + pair.scale * pair.b @ pair.a for w, pair in zip((w1, w2), pairs, strict=True)]
    theirs = expert_mlp_reference(x, p, merged[0], merged[1], counts, ACTIVATIONS["swiglu"], biases=biases)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-10)
    wanted = [x, p, *(each for pair in pairs if pair is not None for each in (pair.a, pair.b))]
    found = gradients(ours, wanted)
    for one, other in zip(found, gradients(theirs, wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    # Behind frozen layers adapters have the same gradients.
    alone = adapted_expert_mlp(x.detach(), p.detach(), (w1, w2), pairs, counts, forms, biases=biases)
    for one, other in zip(gradients(alone, wanted[2:]), found[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def formula(x: Tensor, weight: Tensor, pair: Pair, counts: list[int]) -> Tensor:
    """Return what dropout and DoRA make of one of the linears, expert by expert: arXiv 2402.09353 with dropout as in peft."""
    results = []
    is_kept = torch.ones(len(x), 1, dtype=x.dtype) if pair.kept is None else pair.kept.to(x.dtype)
    c = 1.0 / (1.0 - pair.probability)
    for number, (rows, marks) in enumerate(zip(x.split(counts), is_kept.split(counts), strict=True)):
        a, b = (each[number % len(each)] for each in (pair.a, pair.b))
        d = rows * marks * c if not pair.drops_result else rows
        delta = pair.scale * d @ a.t() @ b.t() * (marks * c if pair.drops_result else 1.0)
        if pair.factors is None:
            results.append(rows @ weight[number].t() + delta)
        else:
            results.append((rows - d) @ weight[number].t() + pair.factors[number] * (d @ weight[number].t() + delta))
    return torch.cat(results)


@pytest.mark.parametrize("way", ["dora", "dora drops", "drops", "drops result"])
def test_rescaled_and_dropping_experts_equal_their_formula(way: str) -> None:
    counts, p = [3, 0, 4], random(7, seed=2)
    x, w1, w2 = random(7, 4, seed=1), random(3, 10, 4, seed=3, grad=False), random(3, 4, 5, seed=4, grad=False)
    pairs = []
    for place, (outputs, inputs) in enumerate(((10, 4), (4, 5))):
        count, seed = (1, 3)[place], 20 * place + 10
        pair = Pair(random(count, 2, inputs, seed=seed), random(count, outputs, 2, seed=seed + 1), 0.6)
        if "dora" in way:
            pair = replace(pair, factors=random(3, outputs, seed=seed + 2))
        if "drops" in way:
            behind = way.endswith("result")
            marks = random(7, outputs if behind else inputs, seed=seed + 3, grad=False) > -0.3
            pair = replace(pair, kept=marks, probability=0.25, drops_result=behind)
        pairs.append(pair)
    forms = ExpertForms(weighted_activation("swiglu", "portable"))
    ours = adapted_expert_mlp(x, p, (w1, w2), (pairs[0], pairs[1]), counts, forms)
    hidden = ACTIVATIONS["swiglu"](formula(x, w1, pairs[0], counts)) * p.unsqueeze(-1)
    theirs = formula(hidden, w2, pairs[1], counts)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-10)
    learned = [each for pair in pairs for each in (pair.a, pair.b, pair.factors) if each is not None]
    found = gradients(ours, [x, p, *learned])
    for one, other in zip(found, gradients(theirs, [x, p, *learned]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    # Behind frozen layers adapters have the same gradients, and those of the second linear alone as well.
    for first in (pairs[0], None):
        alone = adapted_expert_mlp(x.detach(), p.detach(), (w1, w2), (first, pairs[1]), counts, forms)
        other = adapted_expert_mlp(x, p, (w1, w2), (first, pairs[1]), counts, forms)
        wanted = learned if first is not None else learned[len(learned) // 2 :]
        for one, two in zip(gradients(alone, wanted), gradients(other, wanted), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-13, atol=1e-13)


def test_what_a_row_loses_is_drawn_from_its_number_and_the_column_alone() -> None:
    numbers, columns = torch.randint(-(2**62), 2**62, (600,), generator=torch.Generator().manual_seed(1)), torch.arange(500)
    marks = kept_of_rows(numbers, columns, 0.3)
    assert marks.double().mean().item() == pytest.approx(0.7, abs=0.004)
    for dim in (0, 1):
        assert marks.double().mean(dim).std().item() == pytest.approx((0.21 / marks.shape[dim]) ** 0.5, rel=0.1)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(2))
    assert torch.equal(kept_of_rows(numbers[order], columns[100:200], 0.3), marks[order][:, 100:200])
    assert kept_of_rows(numbers[:0], columns, 0.3).shape == (0, 500)


def kept(call: Any) -> list[tuple[int, ...]]:
    """Return the shapes of what a call keeps for its backward."""
    shapes: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: shapes.append(tuple(x.shape)) or x, lambda x: x):
        call()
    return shapes


def test_a_frozen_weight_keeps_no_input() -> None:
    x, weight = random(9, 6, seed=1), random(4, 6, seed=2, grad=False)
    assert (9, 6) not in kept(lambda: linear(x, weight))
    assert (9, 6) in kept(lambda: linear(x, weight.clone().requires_grad_()))
    a, b = random(3, 6, seed=3), random(4, 3, seed=4)
    assert sorted(kept(lambda: adapted_linear(x, None, weight, None, a, b, 1.0))) == [(3, 6), (4, 3), (4, 6), (9, 3), (9, 6)]
