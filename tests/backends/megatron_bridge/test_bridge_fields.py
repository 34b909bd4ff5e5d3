"""No field of the container is dropped: another value changes what the engine reads, is refused, or is said to do nothing."""

import copy
import types
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.assignment import Fault, assign
from primus.backends.megatron_bridge.config_utils import load_recipe_config, merged
from primus.backends.megatron_bridge.consequences import draw_consequences
from primus.backends.megatron_bridge.container import ConfigContainer, GPTDatasetConfig
from primus.backends.megatron_bridge.rules import broken
from primus.backends.megatron_bridge.translate.adapters import adapters
from primus.backends.megatron_bridge.translate.data import rows
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.backends.megatron_bridge.translate.values import flat_values
from primus.core.experiment import Value
from primus.core.keys import Key, parse_type
from primus.errors import ConfigError

PLACE = "exp.yaml:7"
TUNING = load_recipe_config({"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_finetune_config"})
PACKED = load_recipe_config({"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_sft_config"})
TRAINING = load_recipe_config({"recipe": "gpt.vanilla_gpt", "flavor": "vanilla_gpt_pretrain_config"})
MEANS_THE_SAME = {
    "model.virtual_pipeline_model_parallel_size": 2,
    "ddp.grad_reduce_in_fp32": False,
    "mixed_precision.fp32": False,
    "mixed_precision.bf16": True,
    "optimizer.use_distributed_optimizer": False,
    "ddp.use_distributed_optimizer": False,
    "dataset.packed_sequence_specs.packed_sequence_size": 64,
}
"""Values to set where the nearest other value is what the recipe means anyway."""


def parts_of(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def leaves(kind: type, held: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the type and the value of every field but those of data; what is not there is as it would be made."""
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        value = getattr(held, field.name)
        below = [each for each in parts_of(hints[field.name]) if is_dataclass(each)]
        if below and field.name != "dataset":
            made = value if is_dataclass(value) else below[0]()
            yield from leaves(type(made), made, f"{path}{field.name}.")
        elif not below:
            yield f"{path}{field.name}", hints[field.name], value


def another(hint: Any, held: Any) -> Any:
    """Return another value of the type that a field holds, or of the first that it may hold."""
    kind = type(held) if type(held) in parts_of(hint) else parts_of(hint)[0]
    origin = typing.get_origin(kind) or kind
    if origin is bool:
        return not held
    if origin is int or (origin is float and not held):
        return (held or 0) + 1
    if origin is float:
        return held / 2
    if origin is list:
        return ["word"] if typing.get_args(kind)[0] is str else [3]
    return {"word": 1} if origin is dict else "word"


def translated(config: ConfigContainer, sources: dict[str, str]) -> tuple[Any, list[str]]:
    """Return what a container comes to, and what is said of it."""
    draw_consequences(config, sources)
    raw = Raw(config=config, sources=sources, recipe="gpt.vanilla_gpt")
    said: list[str] = []
    peft = adapters(raw, said, said)
    sft = None if isinstance(config.dataset, GPTDatasetConfig) else rows(raw, config.dataset, said)
    said += broken(raw, None, "flavor")
    flat = {key: value.value for key, value in flat_values(raw, world_size=1, problems=said, notices=said).items()}
    return (flat, peft, sft, config.checkpoint.hf_path), said


@pytest.mark.parametrize(
    ("base", "part"),
    [(TUNING, ""), (TUNING, "dataset"), (PACKED, "dataset"), (TRAINING, "dataset")],
    ids=["all", "rows", "packs", "documents"],
)
def test_every_field_acts_or_something_is_said(base: ConfigContainer, part: str) -> None:
    before, silence = translated(copy.deepcopy(base), {})
    dropped = []
    held: Any = getattr(base, part) if part else base
    for field, hint, value in leaves(type(held), held, f"{part}." if part else ""):
        config = copy.deepcopy(base)
        try:
            assign(config, field.split("."), MEANS_THE_SAME.get(field, another(hint, value)))
        except Fault:
            continue
        after, said = translated(config, {field: PLACE})
        name = field.rpartition(".")[2]
        if after == before and not any(name in line and PLACE in line for line in said if line not in silence):
            dropped.append(field)
    assert not dropped, dropped


WORDS = {"recipe": Value("gpt.vanilla_gpt", PLACE), "flavor": Value("vanilla_gpt_finetune_config", PLACE)}
KINDS = {"bool": bool, "int": int, "float": float, "dict": dict, "list[int]": list[int], "list[str]": list[str]}


def is_heard(row: Key, plain: tuple[Any, ...]) -> bool:
    """Tell whether a key acts on what a container comes to, or is named in a refusal or a line of the run."""
    held = plain[0].get(row.name)
    kind = KINDS.get(parse_type(row.type).members[0], str)
    value = next((choice for choice in row.choices or () if choice != held), None) or another(kind, held)
    try:
        found = merged({**WORDS, row.name: Value(value, "exp.yaml:9")})
    except ConfigError as refused:
        return any("exp.yaml:9" in line for line in refused.problems)
    after, said = translated(found.config, found.sources)
    return row.name in found.direct or after != plain or any("exp.yaml:9" in line for line in said)


def test_every_key_of_megatron_is_heard() -> None:
    plain, _ = translated(copy.deepcopy(TUNING), {})
    assert [name for name, row in KEYS.items() if row.status == "live" and not is_heard(row, plain)] == []
