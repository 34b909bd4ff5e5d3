"""Routers, sparse layers and models equal Megatron-Core's, built from their flat keys."""

from pathlib import Path
from typing import Any

import pytest
import torch
from oracle import check_model, load_weights, model_of, read, under
from torch import Tensor, nn

from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe.layer import MoELayer

DATA = Path(__file__).parents[2] / "data" / "moe"


def cases(kind: str) -> list[str]:
    return sorted(path.stem for path in DATA.glob(f"{kind}_*.json"))


def layer_of(model: GPTModel) -> MoELayer:
    layer = model.decoder.layers["0"].mlp
    assert isinstance(layer, MoELayer)
    return layer


def check_losses(layers: list[MoELayer], case: dict[str, Any]) -> None:
    for name, expected in case["logged_losses_without_coefficient"].items():
        found = [layer.router.losses.sums[name].item() for layer in layers]
        assert found == pytest.approx(expected, rel=1e-5)


def check_gradients(module: nn.Module, expected: dict[str, Tensor], case: dict[str, Any]) -> None:
    parameters = dict(module.named_parameters())
    for name, gradient in expected.items():
        if name in parameters:
            torch.testing.assert_close(parameters[name].grad, gradient, **case["tolerance"]["grads"], msg=name)


@pytest.mark.parametrize("name", cases("router"))
def test_a_router_chooses_as_megatron_core(name: str, tmp_path: Path) -> None:
    case, tensors = read(DATA, name)
    router = layer_of(model_of(tmp_path, case)).router
    load_weights(router, under(tensors, "w/router."))
    router.losses.counts_tokens = case["flat_keys"].get("calculate_per_token_loss", False)
    x = tensors["in/hidden_states"].requires_grad_()
    weights, chosen = router(x)
    torch.testing.assert_close(weights.float(), tensors["out/probs"].float(), **case["tolerance"]["probs"])
    expected = tensors["out/routing_map"].bool()
    if case["flat_keys"].get("moe_pad_expert_input_to_capacity"):
        assert torch.equal(chosen.sum(0), expected.sum(0)), "which empty places are filled is arbitrary"
    else:
        assert torch.equal(chosen, expected)
    (weights * tensors["in/upstream_grad_of_probs"]).sum().backward()
    torch.testing.assert_close(x.grad, tensors["g/hidden_states"], **case["tolerance"]["grads"])
    check_gradients(router, under(tensors, "g/router."), case)
    for loss, value in case["logged_losses_without_coefficient"].items():
        times = len(weights) if router.losses.counts_tokens else 1
        assert router.losses.sums[loss].item() == pytest.approx(value[0] * times, rel=1e-5)
    if "out/tokens_per_expert_counted" in tensors:
        assert router.tokens_per_expert is not None
        assert torch.equal(router.tokens_per_expert, tensors["out/tokens_per_expert_counted"].float())


@pytest.mark.parametrize("name", cases("layer"))
def test_a_layer_computes_as_megatron_core(name: str, tmp_path: Path) -> None:
    case, tensors = read(DATA, name)
    layer = layer_of(model_of(tmp_path, case))
    load_weights(layer, under(tensors, "w/"))
    x = tensors["in/hidden_states"].requires_grad_()
    y, bias = layer(x)
    assert bias is None
    torch.testing.assert_close(y, tensors["out/output"], **case["tolerance"]["output"])
    (y * tensors["in/upstream_grad_of_output"]).sum().backward()
    check_gradients(layer, under(tensors, "g/"), case)
    check_losses([layer], case)


@pytest.mark.parametrize("name", cases("gpt"))
def test_a_model_computes_as_megatron_core(name: str, tmp_path: Path) -> None:
    case, tensors = read(DATA, name)
    model = model_of(tmp_path, case)
    check_model(model, case, tensors)
    layers = [layer.mlp for _, layer in model.decoder.numbered() if isinstance(layer.mlp, MoELayer)]
    check_losses(layers, case)
