"""Which linears have adapters: names of the whole model, wildcards, other spellings, and entries that name nothing."""

from dataclasses import replace

import pytest
import torch
from test_peft_layouts import DENSE, MODELS

from primus.engine.config import PEFTConfig
from primus.engine.config.linears import linear_names, targets
from primus.engine.config.peft import DEFAULT_TARGETS, value_problems
from primus.engine.model.builder import build_model
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.moe.experts import GroupedWeight
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

LINEARS = (ColumnParallelLinear, RowParallelLinear, ReplicatedLinear, GroupedWeight)


@pytest.mark.parametrize("name", MODELS)
def test_names_are_those_of_the_modules_of_a_model(name: str) -> None:
    mesh = single_mesh()
    (model,) = build_model(
        MODELS[name], mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=RandomStreams(1, mesh.coordinates)
    )
    built = {name for name, module in model.named_modules() if isinstance(module, LINEARS)}
    assert set(linear_names(MODELS[name])) == built


def parts(*entries: str, scheme: str = "lora", **more: object) -> dict[str, tuple[str, ...]]:
    found = targets(PEFTConfig(scheme=scheme, target_modules=entries, **more), DENSE)  # type: ignore[arg-type]
    assert not found.problems
    return {name.removeprefix("decoder.layers."): each for name, each in found.parts.items()}


def test_an_entry_is_a_last_name_a_whole_one_or_a_pattern() -> None:
    assert set(parts("linear_proj")) == {"0.self_attention.linear_proj", "1.self_attention.linear_proj"}
    assert set(parts("decoder.layers.1.mlp.linear_fc2")) == {"1.mlp.linear_fc2"}
    assert set(parts("*.layers.0.*.linear_qkv", "*.1.mlp.*")) == {
        "0.self_attention.linear_qkv",
        "1.mlp.linear_fc1",
        "1.mlp.linear_fc2",
    }
    assert set(parts("all-linear")) == set(parts(*DEFAULT_TARGETS["lora"]))
    assert set(parts("o_proj", "down_proj")) == set(parts("linear_proj", "linear_fc2"))


def test_without_targets_all_linears_are_adapted_but_the_excluded_ones() -> None:
    assert set(parts(exclude_modules=("linear_fc1", "*.0.*"))) == {
        "1.self_attention.linear_qkv",
        "1.self_attention.linear_proj",
        "1.mlp.linear_fc2",
    }


def test_canonical_lora_names_parts_of_linears() -> None:
    assert parts("v_proj", "*.0.*.linear_q", "linear_fc1_up", scheme="canonical_lora") == {
        "0.self_attention.linear_qkv": ("q", "v"),
        "1.self_attention.linear_qkv": ("v",),
        "0.mlp.linear_fc1": ("up",),
        "1.mlp.linear_fc1": ("up",),
    }
    whole = parts(*DEFAULT_TARGETS["canonical_lora"], scheme="canonical_lora")
    assert whole["1.self_attention.linear_qkv"] == ("q", "k", "v")
    assert whole["1.mlp.linear_fc1"] == ("gate", "up")
    assert whole["1.mlp.linear_fc2"] == ()


@pytest.mark.parametrize(
    ("field", "entries"), [("target_modules", ("linear_v", "up_proj")), ("exclude_modules", ("*.experts.linear_fc1_gate",))]
)
def test_half_of_the_first_linear_of_experts_is_a_problem(field: str, entries: tuple[str, ...]) -> None:
    peft = PEFTConfig(scheme="canonical_lora", **{"target_modules": (), field: entries})  # type: ignore[arg-type]
    (problem,) = targets(peft, MODELS["moe"]).problems
    assert problem.startswith(f"{field}: gate and up of experts share one adapter: name both linear_fc1_gate and linear_fc1_up")
    both = replace(peft, **{field: (*entries, "*.linear_fc1_gate", "*.linear_fc1_up")})
    assert not targets(both, MODELS["moe"]).problems


@pytest.mark.parametrize(
    ("scheme", "entry", "hint"),
    [
        ("lora", "linear_qvk", "the model has linear_fc1, linear_fc2, linear_proj, linear_qkv"),
        ("lora", "*.layers.7.*", "the model has linear_fc1, linear_fc2, linear_proj, linear_qkv"),
        ("lora", "q_proj", "q_proj is a part of linear_qkv here: name linear_qkv, or take peft canonical_lora"),
        ("dora", "linear_fc1_up", "linear_fc1_up is a part of linear_fc1 here: name linear_fc1,"),
        ("canonical_lora", "linear_qkv", "name linear_q, linear_k, linear_v, or take peft lora"),
    ],
)
def test_an_entry_that_names_nothing_is_a_problem(scheme: str, entry: str, hint: str) -> None:
    peft = PEFTConfig(scheme=scheme, target_modules=("linear_proj", entry))  # type: ignore[arg-type]
    (problem,) = targets(peft, DENSE).problems
    assert problem.startswith(f"target_modules: {entry!r} names no linear of the model; ")
    assert hint in problem


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"dim": 0}, "dim", "the rank of adapters is 0"),
        ({"alpha": 0.0}, "alpha", "alpha is 0"),
        ({"dropout": 1.0}, "dropout", "dropout is 1"),
        ({"scheme": "dora", "dropout_position": "post"}, "dropout_position", "must be pre"),
        ({"exclude_modules": ("linear_proj",)}, "exclude_modules", "empty target_modules"),
        ({"normalize_moe_lora": True, "dim": 7}, "normalize_moe_lora", "divided by moe_router_topk (2)"),
    ],
)
def test_a_value_that_cannot_be_is_a_problem(values: dict[str, object], field: str, said: str) -> None:
    ((named, why),) = value_problems(replace(PEFTConfig(), **values), router_topk=2)  # type: ignore[arg-type]
    assert named == field
    assert said in why
