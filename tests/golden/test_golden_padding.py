"""What fills sequences up leaves experts and their losses alone, however rows are cut and wherever they are computed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import train
from test_golden_layouts import in_float64

from primus.engine.config import ConfigContainer, PackingConfig, SFTConfig

pytestmark = pytest.mark.slow  # whole runs

Keys = dict[str, Any]
LENGTH = 24
NUM_ROWS, NUM_PACKS = 12, 6
MODEL: Keys = {
    "num_experts": 4,
    "moe_ffn_hidden_size": 16,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_aux_loss_coeff": 0.5,
    "moe_z_loss_coeff": 0.1,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_bias_update_rate": 0.05,
    "moe_token_dispatcher_type": "alltoall",
    "init_method_std": 0.2,
    "calculate_per_token_loss": True,
    "seq_length": LENGTH,
    "max_position_embeddings": LENGTH,
    "train_iters": 2,
    "global_batch_size": 4,
}
SOFTMAX: Keys = {
    "moe_router_score_function": "softmax",
    "moe_router_enable_expert_bias": False,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.5,
}
KINDS: dict[str, Keys] = {
    "capacity": {"moe_expert_capacity_factor": 1.0, "mtp_num_layers": 1},
    "global": {"moe_router_load_balancing_type": "global_aux_loss"},
    "position": {**SOFTMAX, "moe_expert_capacity_factor": 1.0, "moe_token_drop_policy": "position"},
    "filled": {**SOFTMAX, "moe_expert_capacity_factor": 0.75, "moe_pad_expert_input_to_capacity": True},
    "sinkhorn": {**SOFTMAX, "moe_router_load_balancing_type": "sinkhorn", "moe_aux_loss_coeff": 0.0},
    "per-microbatch": {**SOFTMAX, "calculate_per_token_loss": False},
}
LAYOUTS: dict[str, tuple[int, Keys]] = {
    "ep2": (2, {"expert_model_parallel_size": 2}),
    "cp2-full": (
        2,
        {
            "context_parallel_size": 2,
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        },
    ),
    "tp2-pp2": (
        4,
        {
            "tensor_model_parallel_size": 2,
            "sequence_parallel": True,
            "expert_tensor_parallel_size": 1,
            "pipeline_model_parallel_size": 2,
        },
    ),
}
APART, FILLED = {"pad_multiple": 1}, {"pad_to_max_length": True}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(11)

    def words(least: int, most: int) -> str:
        return " ".join(map(str, random.integers(1, 90, random.integers(least, most)).tolist()))

    found = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = [json.dumps({"input": words(1, 12), "output": words(1, 9)}) for _ in range(NUM_ROWS)]
    found.write_text("".join(f"{line}\n" for line in lines))
    return found


def numbers(folder: Path, file: Path, rows: Keys, keys: Keys, ranks: int = 1) -> list[dict[str, float]]:
    """Return what each iteration says of losses and gradients."""
    sft = SFTConfig(train=str(file), seed=5, order="single", do_validation=False, val_proportion=None, **rows)

    def on_rows(config: ConfigContainer) -> ConfigContainer:
        config = in_float64(config)
        return replace(config, dataset=replace(config.dataset, sft=sft))

    name = f"run{len(list(folder.iterdir()))}"
    found = train(folder, name, {**MODEL, **keys}, ranks=ranks, change=on_rows)
    return [
        {name: row[name] for name in row if name.endswith("loss") or name == "grad_norm"} for row in found if "lm_loss" in row
    ]


def close(rows: list[dict[str, float]]) -> list[Any]:
    return [pytest.approx(row, rel=1e-12) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_filled_up_are_those_that_are_not(kind: str, file: Path, tmp_path: Path) -> None:
    apart = numbers(tmp_path, file, APART, KINDS[kind])
    assert numbers(tmp_path, file, FILLED, KINDS[kind]) == close(apart)


@pytest.fixture(scope="module")
def alone(file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return numbers(tmp_path_factory.mktemp("alone"), file, APART, {})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_fill_rows_up_and_equal_one_process(
    layout: str, alone: list[dict[str, float]], file: Path, tmp_path: Path
) -> None:
    ranks, keys = LAYOUTS[layout]
    assert numbers(tmp_path, file, {"pad_multiple": 4}, keys, ranks) == close(alone)


def test_losses_of_routers_do_not_depend_on_how_rows_are_cut(file: Path, tmp_path: Path) -> None:
    whole = {"train_iters": 1, "global_batch_size": NUM_ROWS}
    apart = numbers(tmp_path, file, APART, whole)
    assert numbers(tmp_path, file, APART, {**whole, "micro_batch_size": 4}) == close(apart)
    packing = PackingConfig(size=LENGTH, algorithm="first_fit_decreasing", pad_multiple=4)
    assert numbers(tmp_path, file, {"packing": packing}, {**whole, "global_batch_size": NUM_PACKS}) == close(apart)


def test_losses_of_routers_weigh_the_same_however_few_tokens_are_trained(file: Path, tmp_path: Path) -> None:
    """So large a coefficient that the loss of the tokens does not show beside it."""
    keys = {"train_iters": 1, "clip_grad": 0.0, "moe_aux_loss_coeff": 1e6}
    few, all_of_them = (numbers(tmp_path, file, {**APART, "loss_on": those}, keys)[0] for those in ("answers", "all"))
    assert few["lm_loss"] != all_of_them["lm_loss"]
    assert few["grad_norm"] == pytest.approx(all_of_them["grad_norm"], rel=1e-3)
