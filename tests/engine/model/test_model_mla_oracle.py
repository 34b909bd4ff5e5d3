"""Latent attention equals Megatron-Core's, in models built from their flat keys."""

from pathlib import Path

import pytest
import torch
from oracle import load_weights, model_of, read, under

from primus.engine.model.mla import LatentAttention

DATA = Path(__file__).parents[2] / "data" / "mla"
CASES = sorted(path.stem for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", CASES)
def test_a_model_computes_as_megatron_core(name: str, tmp_path: Path) -> None:
    case, tensors = read(DATA, name)
    model = model_of(tmp_path, case)
    load_weights(model, under(tensors, "w/"))
    inputs, mask = (tensors["in/input_ids"], tensors["in/position_ids"]), tensors["in/loss_mask"]
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), tensors["out/logits"], **case["tolerance"]["logits"])
    losses = model(*inputs, labels_BS=tensors["in/labels"])
    torch.testing.assert_close(losses, tensors["out/loss_per_token"], rtol=1e-4, atol=1e-5)
    ((losses * mask).sum() / mask.sum()).backward()
    parameters = dict(model.named_parameters())
    for parameter, gradient in under(tensors, "g/").items():
        torch.testing.assert_close(parameters[parameter].grad, gradient, **case["tolerance"]["grads"], msg=parameter)
    squares = sum(p.grad.double().square().sum() for p in model.parameters() if p.grad is not None)
    assert float(squares) ** 0.5 == pytest.approx(case["grad_norms"]["__total__"], rel=1e-3)
    assert all(isinstance(layer.self_attention, LatentAttention) for _, layer in model.decoder.numbered())
