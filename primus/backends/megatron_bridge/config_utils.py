"""From the words of a module to a container: what the recipe returns, with the user's values merged into it.

`merged` and `load_recipe_config` are the names to use. Arguments of the flavor are given to it; every flat key then
finds its field (`routes.py`), and maps named like a sub-config are laid over that. A value on the command line wins over one in
a file, that over one in a preset, and that over the recipe's; of two equally near, the one in a map wins over the flat one.

Null is what the recipe says for an argument of the flavor, and in a preset; of any other key that the user writes it clears the
field, if that may be empty.
"""

import re
from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.argument_builder import plain_arguments
from primus.backends.megatron_bridge.assignment import Fault, assign, field_names
from primus.backends.megatron_bridge.consequences import draw_consequences
from primus.backends.megatron_bridge.container import ConfigContainer, GPTDatasetConfig
from primus.backends.megatron_bridge.keys import KEYS as ROWS
from primus.backends.megatron_bridge.recipes import arguments_of, built, find_flavor
from primus.backends.megatron_bridge.routes import ARGUMENTS_ONLY, RUNTIME
from primus.backends.megatron_bridge.settings import (
    Setting,
    apply,
    beaten,
    defers,
    expand_precision,
    flat_key,
    leaves,
    nested,
    where,
)
from primus.backends.megatron_bridge.words import node_of, normalised
from primus.core.experiment import Value
from primus.core.experiment.value import Node, Tree, flat, plain
from primus.core.keys import check_values, show_value
from primus.errors import ConfigError, InputError
from primus.hub import cached_folder

__all__ = ["Merged", "load_recipe_config", "merged"]

_GIVEN = "backend_args"
"""Source of values that were handed over as a dictionary."""
_WORDS_TOO = ("peft", "optimizer")
"""Sub-configs whose name is a flat key as well."""
_STAGES_OF_OTHERS = ("rm", "reward", "dpo", "kto", "orpo", "ppo", "grpo", "rlhf", "rl")
"""Ways of post-training that a user may look for here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """A recipe's container with the user's values."""

    config: ConfigContainer
    """Fields that nobody but the recipe decided are not in `sources`."""
    sources: dict[str, str]
    """Where each field was decided, by its dotted path, with the word for it: `exp.yaml:14 as finetune_lr`."""
    direct: dict[str, Value]
    """Flat Megatron keys without a field in the container, typed."""
    notices: tuple[str, ...]
    """What the user said to no effect."""


def load_recipe_config(backend_args: Mapping[str, Any] | Namespace | SimpleNamespace) -> ConfigContainer:
    """Return the container of `recipe` and `flavor` with all other arguments merged into it.

    ConfigError lists what is not known, has another type, or is asked of a flavor that does not take it. A text for `model` is
    the name of the preset that the arguments come from, and `framework` says whose they are.
    """
    arguments = plain_arguments(backend_args)
    if isinstance(arguments.get("model"), str):
        del arguments["model"]
    arguments.pop("framework", None)
    return merged({name: node_of(value, _GIVEN) for name, value in arguments.items()}).config


def _merge_dict_to_dataclass(target: Any, source: Mapping[str, Any]) -> None:
    """Lay a dictionary over a dataclass, in place: maps over sub-configs, values over fields.

    An integer or a number in quotes is taken for a float, a map makes a sub-config that is None, null clears a field that may
    be empty and leaves any other. ConfigError with every name that is not a field, and every value of another type.
    """
    problems: list[str] = []
    for name, value in source.items():
        for path, each in leaves(name, node_of(value, _GIVEN)):
            try:
                expand_precision(target, path)
                assign(target, path.split("."), each.value)
            except Fault as fault:
                problems.append(f"{path} {show_value(each.value)} {fault}")
    if problems:
        raise ConfigError(problems)


def merged(nodes: Mapping[str, Node]) -> Merged:
    """Return the container that a module's parameters state; ConfigError with all that is wrong with them."""
    problems: list[str] = []
    nodes = normalised(nodes, problems)
    config, arguments = _recipe_container(nodes, problems)
    told = {_word(problem) for problem in problems}
    settings: list[Setting] = []
    direct: dict[str, Value] = {}
    for key, node in nodes.items():
        if key in RUNTIME or key in told:
            continue
        if key in field_names(ConfigContainer) and (isinstance(node, Tree) or key not in _WORDS_TOO):
            settings += nested(key, node)
        elif not defers(key, flat(node), arguments):
            flat_key(key, node, config, settings, direct, problems)
    settings.sort(key=lambda each: each.rank)
    sources = apply(config, settings, problems)
    draw_consequences(config, sources)
    problems += _nothing_to_train_on(config, nodes.get("mock"))
    problems += _nothing_to_read_with(config, nodes.get("use_null_tokenizer"))
    checked = check_values(KEYS, direct)
    if problems or checked.problems:
        raise ConfigError(dict.fromkeys([*problems, *checked.problems]))
    return Merged(config=config, sources=sources, direct=checked.typed, notices=tuple(dict.fromkeys(beaten(settings))))


def _recipe_container(nodes: Mapping[str, Node], problems: list[str]) -> tuple[ConfigContainer, Collection[str]]:
    """Call the flavor with the arguments that it takes; return what it makes and their names."""
    words = {name: plain(nodes[name]) if name in nodes else None for name in ("recipe", "flavor")}
    missing = [name for name, value in words.items() if not isinstance(value, str) or not value]
    if missing:
        said = [name if words[name] is None else where(name, flat(nodes[name])) for name in missing]
        raise ConfigError(
            f"{' and '.join(said)} must be set: recipe names a module of recipes such as qwen.qwen3, flavor a function in "
            "it; `primus config recipes` lists them"
        )
    recipe, flavor = str(words["recipe"]), str(words["flavor"])
    name = f"recipe {recipe}, flavor {flavor}"
    try:
        function = find_flavor(recipe, flavor)
    except ConfigError as error:
        raise ConfigError([*problems, *(_placed(problem, nodes) for problem in error.problems)]) from error
    taken = arguments_of(function)
    if "stage" in nodes:
        _check_stage(nodes["stage"], problems)
    given = {name: _argument(name, node, problems) for name, node in nodes.items() if name in taken and name not in RUNTIME}
    for key in ARGUMENTS_ONLY:
        if key not in taken and key in nodes and plain(nodes[key]) not in (None, False, "none"):
            place = where(key, flat(nodes[key]))
            problems.append(f"{place}: {recipe} {flavor} does not take it; `primus config recipes` lists what it takes.")
    try:
        return built(function, given, name=name), taken
    except InputError as error:
        # The flavor as it is stands in, so that what is wrong elsewhere is told too.
        problems += _of_flavor(error, nodes)
    try:
        return built(function, {"hf_path": given["hf_path"]} if "hf_path" in given else {}, name=name), taken
    except InputError as error:
        raise ConfigError(dict.fromkeys([*problems, *_of_flavor(error, nodes)])) from error


def _check_stage(node: Node, problems: list[str]) -> None:
    """Collect what is wrong with the stage; one that others have is no typing error."""
    if str(plain(node)).lower() in _STAGES_OF_OTHERS:
        problems.append(f"{where('stage', flat(node))} is not built: there are sft, on rows, and pretrain, on indexed files.")
    else:
        _argument("stage", node, problems)


def _argument(name: str, node: Node, problems: list[str]) -> Any:
    """Return an argument as the type that its field declares; what has another type is left to the recipe."""
    value = plain(node)
    if name == "hf_path" and isinstance(value, str) and not Path(value).expanduser().is_dir():
        folder = cached_folder(value)
        return value if folder is None else str(folder)
    row = ROWS.get(name) or KEYS.get(name)
    if row is None or value is None:
        return value
    checked = check_values({name: replace(row, type=f"{row.type.removesuffix('?')}?")}, {name: flat(node)})
    problems += checked.problems
    return checked.typed[name].value if name in checked.typed else None


def _nothing_to_train_on(config: ConfigContainer, mock: Node | None) -> Iterator[str]:
    """Yield what is wrong if data is not to be made up, and none is named."""
    data = config.dataset
    if mock is None or plain(mock) is not False or not isinstance(data, GPTDatasetConfig):
        return
    if not any((data.blend, data.blend_per_split, data.data_args_path, data.per_split_data_args_path)):
        yield f"{where('mock', flat(mock))}: no data is named; set data_paths, or mock: true."


def _of_flavor(error: InputError, nodes: Mapping[str, Node]) -> Iterator[str]:
    """Yield what a flavor finds wrong, with its place; what is no argument is the folder that it takes its model from."""
    for problem in error.problems:
        if isinstance(error, ConfigError) or "hf_path" not in nodes or _word(problem) == "hf_path":
            yield _placed(problem, nodes)
        else:
            yield f"{problem} (hf_path, {flat(nodes['hf_path']).source})"


def _nothing_to_read_with(config: ConfigContainer, is_null: Node | None) -> Iterator[str]:
    """Yield what is wrong if a run shall have a tokenizer, and none is named."""
    if is_null is not None and plain(is_null) is False and config.tokenizer.tokenizer_type == "NullTokenizer":
        yield f"{where('use_null_tokenizer', flat(is_null))}: no tokenizer is named; set hf_path, or leave it out."


def _placed(problem: str, nodes: Mapping[str, Node]) -> str:
    """Return a recipe's problem with the place of the argument that it names."""
    name = _word(problem)
    return f"{problem} ({flat(nodes[name]).source})" if name in nodes else problem


def _word(problem: str) -> str:
    """Return the key that a problem begins with."""
    return re.split(r"[ .:]", problem, maxsplit=1)[0]
