"""The arithmetic of a choice of experts, on numbers that can be followed by hand."""

import pytest
import torch
from torch import Tensor

from primus.engine.kernels.routing import balance_scores, best, keep_capacity, route, spread_evenly

WEIGHTS = torch.tensor([[0.6, 0.0], [0.7, 0.3], [0.0, 0.9], [0.8, 0.2]])
CHOSEN = WEIGHTS > 0


@pytest.mark.parametrize(("policy", "kept"), [("probs", [[1, 3], [1, 2]]), ("position", [[0, 1], [1, 2]])])
def test_an_over_full_expert_keeps_the_largest_weights_or_the_earliest_tokens(policy: str, kept: list[list[int]]) -> None:
    weights, chosen = keep_capacity(WEIGHTS, CHOSEN, 2, policy=policy)  # type: ignore[arg-type]
    assert [column.nonzero().flatten().tolist() for column in chosen.t()] == kept
    assert torch.equal(weights, WEIGHTS * chosen), "those that stay are not weighted anew"


@pytest.mark.parametrize("policy", ["probs", "position"])
def test_padding_fills_every_expert_with_tokens_of_weight_zero(policy: str) -> None:
    lone = torch.tensor([[0.5, 0.0]] * 4)
    weights, chosen = keep_capacity(lone, lone > 0, 3, policy=policy, pads=True)  # type: ignore[arg-type]
    assert chosen.sum(0).tolist() == [3, 3]
    assert weights[:, 1].tolist() == [0.0] * 4
    assert keep_capacity(lone, lone > 0, 9, pads=True)[1].sum(0).tolist() == [4, 4], "no more than there are tokens"


def test_even_turns_give_every_expert_as_many_tokens() -> None:
    probabilities = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    weights, chosen = spread_evenly(probabilities, 2)
    assert chosen.sum(0).tolist() == [2] * 8
    assert chosen[0].nonzero().flatten().tolist() == chosen[4].nonzero().flatten().tolist() == [0, 1]
    assert torch.equal(weights[4, :2], probabilities[4].topk(2).values), "the largest weight first"


def test_groups_count_by_their_best_experts() -> None:
    scores = torch.tensor([[9.0, 0.0, 0.0, 5.0, 5.0, 0.0]])
    assert sorted(best(scores, 2, (2, 1))[0].tolist()) == [3, 4], "two of the second group are more than one of the first"
    assert sorted(best(scores, 2, (2, 2))[0].tolist()) in ([0, 3], [0, 4]), "one expert counts where two groups share two"


def test_an_even_load_has_a_balance_of_one() -> None:
    scores, plain = balance_scores(torch.eye(4).repeat(2, 1) * 20.0, 1, "softmax")
    q, n, T = scores.sum(0), plain.sum(0), 8
    assert (4 / T**2 * (q * n).sum()).item() == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("score", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_the_scaling_factor_multiplies_weights_and_not_the_choice(score: str) -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    plain, scaled = (route(logits, 2, score=score, scaling=factor) for factor in (None, 2.5))  # type: ignore[arg-type]
    assert torch.equal(plain[1], scaled[1])
    torch.testing.assert_close(scaled[0], 2.5 * plain[0])


def test_roots_of_softplus_weigh_by_their_share() -> None:
    logits = torch.tensor([[3.0, 0.0, -200.0]], requires_grad=True)
    weights, chosen = route(logits, 2, score="sqrtsoftplus")
    assert chosen.tolist() == [[True, True, False]]
    roots = torch.log1p(torch.exp(torch.tensor([3.0, 0.0]))).sqrt()
    torch.testing.assert_close(weights[0, :2], roots / roots.sum())
    assert route(logits, 1, score="sqrtsoftplus")[0].max().item() == pytest.approx(roots[0].item())
    scores, _ = balance_scores(logits, 2, "sqrtsoftplus")
    torch.testing.assert_close(scores[0, :2], roots / roots.sum())
    scores[0, 1].backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all(), "a root of nothing has no slope"


def test_a_bias_moves_the_choice_and_not_the_weights() -> None:
    logits, bias = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([-9.0, 0.0, 0.0])
    weights, chosen = route(logits, 2, score="sigmoid", bias_E=bias)
    assert chosen.tolist() == [[False, True, True]]
    one, other = torch.sigmoid(logits[0, 1:])
    expected: Tensor = torch.stack((one, other)) / (one + other)
    torch.testing.assert_close(weights[0, 1:], expected)
