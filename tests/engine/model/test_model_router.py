"""What a router adds to its choice: losses that reach its weights, noise in training, forced loads, a cap with a gradient."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import model_of
from torch import Tensor

from primus.engine.kernels.routing import balance_scores
from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe import losses
from primus.engine.model.moe.layer import MoELayer
from primus.engine.model.moe.router import Router

S, B, V = 16, 2, 96
KEYS: dict[str, Any] = {
    "num_layers": 1,
    "hidden_size": 16,
    "ffn_hidden_size": 16,
    "num_attention_heads": 2,
    "position_embedding_type": "rope",
    "vocab_size": V,
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
    "init_method_std": 0.5,
}


def model(folder: Path, **keys: Any) -> GPTModel:
    return model_of(folder, {"flat_keys": {**KEYS, **keys}, "seq_length": S})


def router(folder: Path, **keys: Any) -> Router:
    mlp = model(folder, **keys).decoder.layers["0"].mlp
    assert isinstance(mlp, MoELayer)
    return mlp.router


def tokens() -> Tensor:
    return torch.randn(S, B, 16, generator=torch.Generator().manual_seed(3))


def gradient_without_labels(folder: Path, kind: str, coefficient: float) -> Tensor:
    """Return the gradient of the router where no token counts for the loss of the tokens."""
    gpt = model(folder, moe_router_load_balancing_type=kind, moe_aux_loss_coeff=coefficient)
    ids = torch.randint(0, V, (B, S), generator=torch.Generator().manual_seed(0))
    losses: Tensor = gpt(ids, torch.arange(S).expand(B, S), labels_BS=ids)
    (losses * 0.0).sum().backward()
    mlp = gpt.decoder.layers["0"].mlp
    assert isinstance(mlp, MoELayer)
    assert mlp.router.weight.grad is not None
    return mlp.router.weight.grad


@pytest.mark.parametrize("kind", ["aux_loss", "seq_aux_loss", "global_aux_loss"])
def test_a_loss_of_the_load_reaches_the_router_in_proportion(kind: str, tmp_path: Path) -> None:
    none, one, two = (gradient_without_labels(tmp_path, kind, coefficient) for coefficient in (0.0, 0.1, 0.2))
    assert not none.any()
    assert one.abs().max() > 1e-6
    torch.testing.assert_close(two, 2 * one)


@torch.no_grad()
def test_jitter_moves_logits_in_training_alone(tmp_path: Path) -> None:
    plain, jittery = router(tmp_path), router(tmp_path, moe_input_jitter_eps=0.1)
    still = plain(tokens()).weights
    first, second = (jittery(tokens()).weights for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(jittery.eval()(tokens()).weights, still)
    factors = (jittery.train()._logits(torch.eye(16)) / (torch.eye(16) @ jittery.weight.t())).flatten()
    assert 0.9 <= factors.min() < 0.97, "each element of the input has its own factor"
    assert 1.03 < factors.max() <= 1.1


@torch.no_grad()
@pytest.mark.parametrize("kind", ["even", "uniform"])
def test_a_forced_load_knows_nothing_of_the_tokens(kind: str, tmp_path: Path) -> None:
    keys = {"moe_router_force_load_balancing": True, "moe_router_force_load_balancing_type": kind}
    counts = router(tmp_path, **keys)(torch.ones(S, B, 16)).map.sum(0)
    assert counts.sum() == S * B * 2
    assert (counts.tolist() == [16] * 4) == (kind == "even")
    assert counts.min() > 0, "equal tokens go to different experts"
    assert router(tmp_path)(torch.ones(S, B, 16)).map.sum(0).tolist().count(0) == 2, "by default they go together"


def test_a_forced_load_still_trains_the_router(tmp_path: Path) -> None:
    forced = router(tmp_path, moe_router_force_load_balancing=True)
    (forced(tokens()).weights * torch.randn(S * B, 4, generator=torch.Generator().manual_seed(1))).sum().backward()
    assert forced.weight.grad is not None
    assert forced.weight.grad.any()


def test_a_soft_cap_bounds_logits_and_keeps_their_gradient(tmp_path: Path) -> None:
    capped = router(tmp_path, router_logit_softcapping=0.5, moe_router_score_function="sigmoid", moe_router_topk=1)
    x = (tokens() * 10).requires_grad_()
    weights = capped(x).weights
    assert weights.max() <= torch.sigmoid(torch.tensor(0.5))
    weights.sum().backward()
    logits = (x.detach().flatten(0, 1) @ capped.weight.t()).detach().requires_grad_()
    torch.sigmoid(0.5 * torch.tanh(logits / 0.5)).max(1).values.sum().backward()
    assert logits.grad is not None
    torch.testing.assert_close(x.grad, (logits.grad @ capped.weight.detach()).view_as(x))


@torch.no_grad()
def test_a_shared_expert_counts_as_much_as_its_gate_says(tmp_path: Path) -> None:
    keys = {"moe_shared_expert_intermediate_size": 8, "moe_router_score_function": "sqrtsoftplus"}
    plain, gated = (model(tmp_path, moe_shared_expert_gate=gate, **keys).decoder.layers["0"].mlp for gate in (False, True))
    x = tokens()
    gated.load_state_dict({**plain.state_dict(), "shared_experts.gate_weight": torch.zeros(1, 16)})
    shared = plain.shared_experts(x)[0]
    torch.testing.assert_close(gated(x)[0], plain(x)[0] - shared / 2)
    gate = gated.shared_experts.gate_weight.normal_(generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gated(x)[0], plain(x)[0] - shared + torch.sigmoid((x * gate).sum(-1, keepdim=True)) * shared)


def test_an_evaluation_counts_nothing(tmp_path: Path) -> None:
    keys = {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid", "moe_z_loss_coeff": 0.1}
    evaluated = router(tmp_path, **keys)
    with torch.no_grad():
        evaluated(tokens())
    evaluated.eval()(tokens())
    assert evaluated.losses.sums == {}
    assert evaluated.tokens_per_expert is not None
    assert not evaluated.tokens_per_expert.any()
    evaluated.train()(tokens())
    assert evaluated.tokens_per_expert.sum() == S * B * 2
    assert evaluated.expert_bias is not None
    assert evaluated.expert_bias.dtype == torch.float32


def test_tokens_that_fill_experts_up_do_not_count_for_the_bias(tmp_path: Path) -> None:
    biased = {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
    full = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    dropping, filling = router(tmp_path, **biased, moe_expert_capacity_factor=1.0), router(tmp_path, **biased, **full)
    dropping(tokens())
    assert filling(tokens()).map.sum(0).tolist() == [16] * 4
    assert dropping.tokens_per_expert is not None
    assert dropping.tokens_per_expert.min() < 16
    assert torch.equal(dropping.tokens_per_expert, filling.tokens_per_expert)


@pytest.mark.parametrize(
    ("keys", "is_known"),
    [
        ({}, True),
        ({"moe_router_score_function": "sigmoid"}, True),
        ({"moe_expert_capacity_factor": 0.5}, True),
        ({"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}, False),
        ({"moe_router_num_groups": 2, "moe_router_group_topk": 1}, False),
    ],
)
def test_losses_choose_themselves_only_where_routing_chooses_otherwise(
    keys: dict[str, Any], is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Tensor | None] = []

    def noted(logits: Tensor, k: int, score: Any, plain: Tensor | None = None) -> tuple[Tensor, Tensor]:
        given.append(plain)
        scores, chosen = balance_scores(logits, k, score)
        assert plain is None or torch.equal(plain, chosen), "the choice before capacity drops any"
        return scores, chosen

    monkeypatch.setattr(losses, "balance_scores", noted)
    router(tmp_path, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.1, **keys)(tokens())
    assert [each is not None for each in given] == [is_known]
