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
from primus.backends.megatron_bridge.dataset_arguments import FILES, LISTS, normalise_dataset_arguments
from primus.backends.megatron_bridge.keys import KEYS as ROWS
from primus.backends.megatron_bridge.recipes import arguments_of, built, find_flavor
from primus.backends.megatron_bridge.routes import ARGUMENTS_ONLY, KEY_ALIASES, RUNTIME, known_keys, routes_of
from primus.backends.megatron_bridge.translate.precision import named
from primus.core.experiment import Value, is_preset_source, nearest
from primus.core.experiment.value import Node, Tree, flat, plain
from primus.core.keys import check_values, show_value
from primus.errors import ConfigError
from primus.hub import cached_folder

__all__ = ["Merged", "load_recipe_config", "merged"]

_GIVEN = "backend_args"
"""Source of values that were handed over as a dictionary."""
_NULL_CLEARS = ("peft",)
"""Arguments of flavors whose null is a value; that of any other means what the recipe says."""
_WORDS_TOO = ("peft", "optimizer")
"""Sub-configs whose name is a flat key as well."""
_PRECISION_WORDS = ("bf16", "fp16", "params_dtype", "accumulate_allreduce_grads_in_fp32")


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """A recipe's container with the user's values."""

    config: ConfigContainer
    """Fields that nobody but the recipe decided are not in `sources`."""
    sources: dict[str, str]
    """Where each field was decided, by its dotted path, with the word for it: `exp.yaml:14 as finetune_lr`."""
    direct: dict[str, Value]
    """Flat Megatron keys without a field in the container, typed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Setting:
    """A value that one field of the container shall have."""

    path: str
    value: Value
    word: str
    is_nested: bool

    @property
    def source(self) -> str:
        """Where it was set; under which word, if that is not the field's."""
        same = not self.is_nested and self.word == self.path.rpartition(".")[2]
        return self.value.source if same else f"{self.value.source} as {self.word}"

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """What is greater wins; a field of a sub-config wins over what says all of it, as `precision_config` does."""
        source = self.value.source
        return ("." in self.path, 2 if source == "cli" else 0 if is_preset_source(source) else 1, self.is_nested)


def load_recipe_config(backend_args: Mapping[str, Any] | Namespace | SimpleNamespace) -> ConfigContainer:
    """Return the container of `recipe` and `flavor` with all other arguments merged into it.

    ConfigError lists what is not known, has another type, or is asked of a flavor that does not take it. A text for `model` is
    the name of the preset that the arguments come from.
    """
    arguments = plain_arguments(backend_args)
    if isinstance(arguments.get("model"), str):
        del arguments["model"]
    return merged({name: _node(value, _GIVEN) for name, value in arguments.items()}).config


def _merge_dict_to_dataclass(target: Any, source: Mapping[str, Any]) -> None:
    """Lay a dictionary over a dataclass, in place: maps over sub-configs, values over fields.

    An integer or a number in quotes is taken for a float, a map makes a sub-config that is None, null clears a field that may
    be empty and leaves any other. ConfigError with every name that is not a field, and every value of another type.
    """
    problems: list[str] = []
    for name, value in source.items():
        for path, each in _leaves(name, _node(value, _GIVEN)):
            try:
                _expand_precision(target, path)
                assign(target, path.split("."), each.value)
            except Fault as fault:
                problems.append(f"{path} {show_value(each.value)} {fault}")
    if problems:
        raise ConfigError(problems)


def merged(nodes: Mapping[str, Node]) -> Merged:
    """Return the container that a module's parameters state; ConfigError with all that is wrong with them."""
    problems: list[str] = []
    nodes = _normalised(nodes, problems)
    config, arguments = _recipe_container(nodes, problems)
    told = {_word(problem) for problem in problems}
    settings: list[_Setting] = []
    direct: dict[str, Value] = {}
    for key, node in nodes.items():
        if key in RUNTIME or key in told:
            continue
        if key in field_names(ConfigContainer) and (isinstance(node, Tree) or key not in _WORDS_TOO):
            settings += _nested(key, node)
        elif not _defers(key, flat(node), arguments):
            _flat_key(key, node, config, settings, direct, problems)
    sources = _apply(config, sorted(settings, key=lambda each: each.rank), problems)
    draw_consequences(config, sources)
    problems += _nothing_to_train_on(config, nodes.get("mock"))
    checked = check_values(KEYS, direct)
    if problems or checked.problems:
        raise ConfigError(dict.fromkeys([*problems, *checked.problems]))
    return Merged(config=config, sources=sources, direct=checked.typed)


def _node(value: Any, source: str) -> Node:
    """Return a plain value as a node whose leaves all have one source."""
    if isinstance(value, Mapping) and value:
        return Tree({str(name): _node(each, source) for name, each in value.items()}, source)
    return Value(value, source)


def _normalised(nodes: Mapping[str, Node], problems: list[str]) -> dict[str, Node]:
    """Return the parameters with the names of data in one form; maps that came as one value become trees."""
    found: dict[str, Node] = {}
    for name, node in nodes.items():
        is_map = isinstance(node, Value) and isinstance(node.value, dict)
        found[name] = _node(flat(node).value, flat(node).source) if is_map else node
    words = [name for name in (*LISTS, *FILES, "mock", "mock_data") if name in found]
    data = {name: plain(found[name]) for name in words}
    places = {name: flat(found.pop(name)).source for name in words}
    try:
        normalise_dataset_arguments(data)
    except ConfigError as error:
        problems += [f"{problem} ({', '.join(places.values())})" for problem in error.problems]
        return found
    return found | {name: Value(value, places.get(name) or next(iter(places.values()))) for name, value in data.items()}


def _recipe_container(nodes: Mapping[str, Node], problems: list[str]) -> tuple[ConfigContainer, Collection[str]]:
    """Call the flavor with the arguments that it takes; return what it makes and their names."""
    words = {name: plain(nodes[name]) if name in nodes else None for name in ("recipe", "flavor")}
    missing = [name for name, value in words.items() if not isinstance(value, str) or not value]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} must be set: recipe names a module of recipes such as qwen.qwen3, flavor a function in "
            "it; `primus config recipes` lists them"
        )
    recipe, flavor = str(words["recipe"]), str(words["flavor"])
    try:
        function = find_flavor(recipe, flavor)
    except ConfigError as error:
        raise ConfigError([*problems, *(_placed(problem, nodes) for problem in error.problems)]) from error
    taken = arguments_of(function)
    if "stage" in nodes:
        _argument("stage", nodes["stage"], problems)
    given = {name: _argument(name, node, problems) for name, node in nodes.items() if name in taken and name not in RUNTIME}
    for name in ARGUMENTS_ONLY:
        if name not in taken and name in nodes and plain(nodes[name]) not in (None, False, "none"):
            place = _where(name, flat(nodes[name]))
            problems.append(f"{place}: {recipe} {flavor} does not take it; `primus config recipes` lists what it takes.")
    try:
        return built(function, given, name=f"{recipe} {flavor}"), taken
    except ConfigError as error:
        # The flavor as it is stands in, so that what is wrong elsewhere is told too.
        problems += [_placed(problem, nodes) for problem in error.problems]
    try:
        return built(function, {"hf_path": given["hf_path"]} if "hf_path" in given else {}, name=f"{recipe} {flavor}"), taken
    except ConfigError as error:
        raise ConfigError(dict.fromkeys([*problems, *error.problems])) from error


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


def _nested(key: str, node: Node) -> Iterator[_Setting]:
    """Yield the settings of a map that is named like a sub-config."""
    for path, value in _leaves(key, node):
        if path != "peft.type":
            yield _Setting(path=path, value=value, word=path, is_nested=True)


def _leaves(path: str, node: Node) -> Iterator[tuple[str, Value]]:
    if isinstance(node, Value):
        yield path, node
        return
    for name, child in node.children.items():
        yield from _leaves(f"{path}.{name}", child)


def _defers(key: str, value: Value, arguments: Collection[str]) -> bool:
    """Tell whether a value is null and means what the recipe says."""
    if value.value is not None or (key in arguments and key in _NULL_CLEARS):
        return False
    return key in arguments or is_preset_source(value.source)


def _flat_key(
    key: str,
    node: Node,
    config: ConfigContainer,
    settings: list[_Setting],
    direct: dict[str, Value],
    problems: list[str],
) -> None:
    """Sort one flat key: settings of fields, a Megatron key without one, or a word that is not known."""
    value, megatron = flat(node), KEY_ALIASES.get(key, key)
    if key == "skip_save":
        settings += _without_saves(value, problems)
    elif key in _PRECISION_WORDS and config.mixed_precision is not None and value.value is not None:
        problems.append(f"{_where(key, value)}: dtypes are what precision_config says; set that, to bf16_mixed for one.")
    elif key in ARGUMENTS_ONLY and key != "finetune_lr":
        # What it decides the flavor has decided.
        settings += [_Setting(path=path, value=value, word=key, is_nested=False) for path in ARGUMENTS_ONLY[key]]
    elif key == "comm_overlap_config" and isinstance(node, Tree):
        for path, each in _leaves(key, node):
            name = path.partition(".")[2]
            settings.append(_Setting(path=f"comm_overlap.{name}", value=each, word=path, is_nested=False))
    elif routes := routes_of(key, config):
        settings += [_Setting(path=path, value=value, word=key, is_nested=False) for path in routes]
    elif megatron in KEYS:
        direct[megatron] = value if megatron == key else replace(value, source=f"{value.source} as {key}")
    else:
        close = nearest(key, known_keys(config))
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        problems.append(f"{_where(key, value)} is not a key of framework megatron_bridge.{hint}")


def _without_saves(value: Value, problems: list[str]) -> Iterator[_Setting]:
    if value.value not in (True, False, None):
        problems.append(f"{_where('skip_save', value)} must be true or false.")
    if value.value is True:
        for name in ("save", "save_interval"):
            yield _Setting(path=f"checkpoint.{name}", value=Value(None, value.source), word="skip_save", is_nested=False)


def _apply(config: ConfigContainer, settings: list[_Setting], problems: list[str]) -> dict[str, str]:
    """Set all fields, those that win last; return where each one was decided."""
    problems += _two_rates(settings)
    sources: dict[str, str] = {}
    for each in settings:
        if not each.is_nested and each.word in ARGUMENTS_ONLY and each.word != "finetune_lr":
            sources[each.path] = each.source
            continue
        if each.path.startswith("peft.") and config.peft is None and not each.is_nested:
            problems.append(f"{_where(each.word, each.value)}: peft is none, so there are no adapters; set peft: lora.")
            continue
        try:
            _expand_precision(config, each.path)
            if assign(config, each.path.split("."), each.value.value):
                sources[each.path] = each.source
            elif not is_preset_source(each.value.source):
                problems.append(_must_have_value(config, each))
        except Fault as fault:
            problems.append(f"{_where(each.word, each.value)} {fault}")
        except ConfigError as error:
            problems += [f"{problem} ({sources.get('mixed_precision', 'recipe')})" for problem in error.problems]
    return sources


def _must_have_value(config: ConfigContainer, setting: _Setting) -> str:
    """Return why a field cannot be cleared."""
    held: Any = config
    for name in setting.path.split("."):
        held = getattr(held, name)
    return (
        f"{_where(setting.word, setting.value)}: {setting.path} cannot be empty; leave it out, and it is "
        f"{show_value(held)}, as the recipe says."
    )


def _nothing_to_train_on(config: ConfigContainer, mock: Node | None) -> Iterator[str]:
    """Yield what is wrong if data is not to be made up, and none is named."""
    data = config.dataset
    if mock is None or plain(mock) is not False or not isinstance(data, GPTDatasetConfig):
        return
    if not any((data.blend, data.blend_per_split, data.data_args_path, data.per_split_data_args_path)):
        yield f"{_where('mock', flat(mock))}: no data is named; set data_paths, or mock: true."


def _two_rates(settings: list[_Setting]) -> Iterator[str]:
    """Yield what is wrong if `lr` and `finetune_lr` differ."""
    rates = {each.word: each for each in settings if each.word in ("lr", "finetune_lr")}
    if len(rates) == 2 and rates["lr"].value.value != rates["finetune_lr"].value.value:
        both = " and ".join(_where(name, rates[name].value) for name in ("lr", "finetune_lr"))
        yield f"{both} are two names of one rate, and differ; keep finetune_lr."


def _expand_precision(config: Any, path: str) -> None:
    """Turn a precision that is still a name into its fields before one of them is set."""
    if path.startswith("mixed_precision.") and isinstance(getattr(config, "mixed_precision", None), str):
        config.mixed_precision = named(config.mixed_precision)


def _where(name: str, value: Value) -> str:
    return f"{name} {show_value(value.value)} ({value.source})"


def _placed(problem: str, nodes: Mapping[str, Node]) -> str:
    """Return a recipe's problem with the place of the argument that it names."""
    name = _word(problem)
    return f"{problem} ({flat(nodes[name]).source})" if name in nodes else problem


def _word(problem: str) -> str:
    """Return the key that a problem begins with."""
    return re.split(r"[ .:]", problem, maxsplit=1)[0]
