"""Adapters can be left out of a forward, whatever they are; and what ranks drop of what they hold."""

from dataclasses import replace

import pytest
import torch
from divided import batch
from ranks import run_ranks
from test_peft_layouts import ALL, DENSE, MODELS, adapted, first_loss
from torch import Tensor

from primus.engine.config import DistConfig, PEFTConfig
from primus.engine.config.model import ModelConfig, ParallelConfig
from primus.engine.parallel.mesh import build_mesh, single_mesh
from primus.engine.peft.apply import without_adapters
from primus.engine.peft.linears import AdaptedLinear


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dense", {}),
        ("dense", {"scheme": "canonical_lora"}),
        ("dense", {"scheme": "dora"}),
        ("moe", {"scheme": "dora"}),
        ("moe", {"share_expert_adapters": False, "target_modules": ("*.experts.*",)}),
    ],
    ids=["lora", "canonical", "dora", "experts", "each expert"],
)
def test_without_adapters_a_model_is_its_base(name: str, change: dict[str, object]) -> None:
    config = MODELS[name]
    model = adapted(config, PEFTConfig(**{**ALL, **change}), single_mesh())  # type: ignore[arg-type]
    tokens, positions, labels, mask = batch(config)
    base = first_loss(config, None, single_mesh())
    with torch.no_grad():
        with without_adapters([model]):
            loss = model(tokens, positions, labels_BS=labels, loss_mask_BS=mask)
        torch.testing.assert_close(loss, base, rtol=1e-13, atol=0.0)
        assert abs(model(tokens, positions, labels_BS=labels, loss_mask_BS=mask) / base - 1) > 1e-3


def dropped(rank: int, config: ModelConfig, peft: PEFTConfig) -> dict[str, Tensor | None]:
    """Return what is left of ones before A and behind B of the linears of a layer, on this rank."""
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    layer = adapted(config, peft, mesh).decoder.layers["0"]
    found = {}
    for name, module in layer.named_modules():
        if isinstance(module, AdaptedLinear):
            for side, drop in (("in", module._drop_in), ("out", module._drop_out)):
                found[f"{name.rpartition('.')[2]} {side}"] = drop(torch.ones(8, 1, 16))
    return found


@pytest.mark.parametrize("position", ["pre", "post"])
def test_ranks_drop_other_places_of_what_is_divided_and_the_same_of_what_is_whole(position: str) -> None:
    peft = PEFTConfig(**{**ALL, "dropout": 0.5, "dropout_position": position})  # type: ignore[arg-type]
    one, other = run_ranks(dropped, 2, replace(DENSE, parallel=ParallelConfig(tensor_model_parallel_size=2)), peft)
    side = "in" if position == "pre" else "out"
    whole, divided = ("linear_qkv", "linear_proj") if position == "pre" else ("linear_proj", "linear_qkv")
    assert torch.equal(one[f"{whole} {side}"], other[f"{whole} {side}"])
    assert not torch.equal(one[f"{divided} {side}"], other[f"{divided} {side}"])
