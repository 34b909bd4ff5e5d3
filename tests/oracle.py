"""Models of recorded cases: their flat keys go through the front door, their weights into the model that comes of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from runs import build_container
from safetensors.torch import load_file
from torch import Tensor, nn

from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

__all__ = ["check_model", "check_transformers", "load_weights", "model_of", "read", "under"]


def read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a case."""
    return json.loads((folder / f"{name}.json").read_text()), load_file(folder / f"{name}.safetensors")


def model_of(folder: Path, case: Mapping[str, Any], **more: Any) -> GPTModel:
    """Return the fp32 model of a case's keys, with `more` keys; `folder` is for the experiment's file."""
    keys = {key: value for key, value in case["flat_keys"].items() if value is not None}
    keys |= {"seq_length": case["seq_length"], "tokenizer_type": "NullTokenizer", "vocab_size": 95, **more}
    config = build_container(folder, "case", 1, keys).model
    mesh = single_mesh()
    (model,) = build_model(
        replace(config, vocab_size=case["flat_keys"]["vocab_size"]),
        mesh=mesh,
        dtype=torch.float32,
        device="cpu",
        seed=1,
        streams=RandomStreams(1, mesh.coordinates),
    )
    return model


def check_model(model: GPTModel, case: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Hold a whole model to a case: logits, losses, every recorded gradient, the norm of all of them."""
    load_weights(model, under(tensors, "w/"))
    inputs, mask = (tensors["in/input_ids"], tensors["in/position_ids"]), tensors["in/loss_mask"]
    with torch.no_grad():
        torch.testing.assert_close(model(*inputs), tensors["out/logits"], **case["tolerance"]["logits"])
    losses = model(*inputs, labels_BS=tensors["in/labels"])
    torch.testing.assert_close(losses, tensors["out/loss_per_token"], rtol=1e-4, atol=1e-5)
    ((losses * mask).sum() / mask.sum()).backward()
    for name, gradient in under(tensors, "g/").items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, **case["tolerance"]["grads"], msg=name)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(norm.item(), case["grad_norms"]["__total__"], rtol=1e-3, atol=0.0)


def check_transformers(
    folder: Path,
    theirs: Any,
    keys: Mapping[str, Any],
    converted: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    *,
    std: float = 0.3,
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> None:
    """Give a library's model random weights, and hold the model of `keys` with the same ones to its logits."""
    torch.manual_seed(0)
    theirs.eval()
    biases = [buffer for name, buffer in theirs.named_buffers() if name.endswith("e_score_correction_bias")]
    with torch.no_grad():
        for tensor in (*theirs.parameters(), *biases):
            tensor.normal_(0.0, std)
    ours = model_of(folder, {"flat_keys": keys, "seq_length": 20})
    load_weights(ours, converted(theirs.state_dict()))
    ids = torch.randint(0, 96, (2, 20))
    with torch.no_grad():
        expected = theirs(ids).logits
        torch.testing.assert_close(ours(ids, torch.arange(20).expand(2, -1)), expected, rtol=rtol, atol=atol)
    assert float(expected.std()) > 0.1, "weights that say nothing show nothing"


def under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a prefix under our names: an expert's matrix is a part of a stack."""
    experts: dict[str, list[tuple[int, Tensor]]] = {}
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix):
            continue
        before, _, after = name.removeprefix(prefix).partition("local_experts.")
        if not after:
            plain[before] = tensor
            continue
        number, rest = after.split(".", 1)
        experts.setdefault(before + rest, []).append((int(number), tensor))
    return plain | {name: torch.stack([part for _, part in sorted(parts, key=_number)]) for name, parts in experts.items()}


@torch.no_grad()
def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill all parameters, and the buffers that weights name."""
    held = {**dict(module.named_parameters()), **{n: b for n, b in module.named_buffers() if n in weights}}
    assert held.keys() == weights.keys()
    for name, tensor in held.items():
        tensor.copy_(weights[name])


def _number(part: tuple[int, Tensor]) -> int:
    return part[0]
