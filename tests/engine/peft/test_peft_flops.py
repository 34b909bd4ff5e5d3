"""The arithmetic of training adapters: what is counted from the configuration is what a forward and its backward multiply."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from divided import BASE
from runs import build_container, train
from test_peft_layouts import MODELS, adapted
from torch.utils.flop_counter import FlopCounterMode

from primus.core.plan import plan_of
from primus.engine.config import PEFTConfig
from primus.engine.config.model import ModelConfig
from primus.engine.model.flops import TrainingCost, training_cost, training_flops
from primus.engine.parallel.mesh import single_mesh

ALL = PEFTConfig(dim=4, target_modules=())
CASES: dict[str, tuple[ModelConfig, PEFTConfig]] = {
    "all": (BASE, ALL),
    "first-in-the-middle": (BASE, replace(ALL, target_modules=("*.layers.1.*.linear_proj", "*.layers.1.*.linear_fc1"))),
    "last-linear": (BASE, replace(ALL, target_modules=("*.layers.1.*.linear_fc2",))),
    "latent": (MODELS["mla"], replace(ALL, target_modules=("linear_kv_up_proj", "linear_q_down_proj"))),
    "latent, late": (MODELS["mla"], replace(ALL, target_modules=("*.layers.1.*.linear_*_up_proj",))),
    "experts": (replace(MODELS["moe"], mtp=BASE.mtp), replace(ALL, target_modules=("*.experts.linear_fc2",))),
    "experts' own": (replace(MODELS["moe"], mtp=BASE.mtp), replace(ALL, share_expert_adapters=False)),
}


def added(_: torch.Tensor, x: torch.Tensor, y: torch.Tensor, **__: object) -> int:
    """Count a product that is added in place, which torch's table lacks."""
    return 2 * x.shape[0] * x.shape[1] * y.shape[1]


added._get_raw = True  # type: ignore[attr-defined] # it takes the tensors themselves


def routed(config: ModelConfig, *, flows: bool) -> int:
    """Return the multiplications of a token in routers, which are left out of what is counted."""
    return (1 + flows) * len(config.moe.layers) * (config.moe.num_experts or 0) * config.hidden_size


@pytest.mark.parametrize("case", CASES)
def test_arithmetic_is_that_of_the_products_that_run(case: str) -> None:
    config, peft = CASES[case]
    config = replace(config, attention=replace(config.attention, backend="unfused"))
    model = adapted(config, peft, single_mesh())
    tokens = torch.zeros(2, config.seq_length, dtype=torch.int64)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: added}) as counter:
        model(tokens, torch.arange(config.seq_length).expand(2, -1)).sum().backward()
    cost = training_cost(config, peft)
    # Explicit attention multiplies the whole square.
    counted = tokens.numel() * (cost.token + 2 * cost.square * config.seq_length)
    routers = 2 * tokens.numel() * routed(config, flows=case != "experts")
    assert counter.get_total_flops() == counted + routers


def test_arithmetic_of_a_linear_by_hand() -> None:
    """One adapter, on the second layer's `linear_fc1`: all before it runs forward alone."""
    peft = PEFTConfig(dim=4, target_modules=("*.layers.1.mlp.linear_fc1",))
    h, f, rows, square = 16, 24, 96, 4 * 6 * 2
    layer = h * 3 * 24 + 24 * h + 3 * h * f
    frozen = 2 * layer + h * rows
    # Gradients of inputs: of `linear_fc2` and of the output layer.
    inputs = h * f + h * rows
    adapter = 2 * 4 * h + 3 * 4 * 2 * f
    assert training_cost(BASE, peft) == TrainingCost(2 * (frozen + inputs + adapter), 2 * square)


def test_each_layer_of_very_many_adds_the_same() -> None:
    """Dense and sparse in turn: no layer is looked for among all of them."""
    moe = MODELS["moe"].moe

    def cost(layers: int) -> TrainingCost:
        sparse = replace(moe, layers=tuple(range(1, layers, 2)))
        return training_cost(replace(BASE, num_layers=layers, moe=sparse), ALL)

    two, four, many = cost(2), cost(4), cost(4000)
    assert many.token - two.token == 1999 * (four.token - two.token)
    assert many.square - two.square == 1999 * (four.square - two.square)


def test_a_run_and_its_plan_count_what_adapters_take(tmp_path: Path) -> None:
    peft = PEFTConfig(dim=4)
    container = build_container(tmp_path, "run", 1, {"train_iters": 1, "hidden_dropout": 0.0})
    batch = container.train.global_batch_size
    (row,) = train(tmp_path, "run", {"train_iters": 1}, change=lambda config: replace(config, peft=peft))
    seconds = row["iteration_time_ms"] / 1000
    model = replace(container.model, vocab_size=96)
    assert row["tflops_per_device"] * 1e12 * seconds == pytest.approx(training_flops(model, batch, peft), rel=1e-6)
    assert plan_of(replace(container, model=model, peft=peft), 1).flops_per_iteration == training_flops(model, batch, peft)
    assert training_flops(model, batch, peft) < 0.8 * training_flops(model, batch)
