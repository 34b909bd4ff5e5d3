"""From a file, words and environment to an `Experiment`: `load_experiment` is the name to use.

Every mistake that reading can survive is collected, and all are raised as one `ConfigError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from primus.core.experiment.experiment import FILE_WORDS, META, Experiment, Module
from primus.core.experiment.extends import CONFIGS, NamedFile, Reading, read_with_extends, relative
from primus.core.experiment.layout import Outline, outlines
from primus.core.experiment.presets import find_preset
from primus.core.experiment.value import Node, Tree, Value, flat, merged
from primus.core.experiment.words import read_words
from primus.errors import ConfigError

__all__ = ["load_experiment", "load_presets"]


def load_experiment(file: Path, words: Sequence[str], env: Mapping[str, str]) -> Experiment:
    """Read an experiment; `words` are the command line's keys, `env` serves `${VAR}`."""
    reading = Reading(env)
    asked = read_words(words, reading.problems)
    named = NamedFile(file.absolute(), str(file))
    try:
        tree = merged(read_with_extends(named, reading), _chosen(asked, file_words=True))
        parameters = _chosen(asked, file_words=False)
        outline = outlines(tree, named, reading.problems)
        modules = {each.role: module for each in outline if (module := _module(each, parameters, named, reading)) is not None}
        meta = _meta(tree, file, env, reading.problems)
    except ConfigError as error:
        raise ConfigError(dict.fromkeys([*reading.problems, *error.problems])) from error
    if reading.problems:
        raise ConfigError(dict.fromkeys(reading.problems))
    return Experiment(file=file, modules=modules, **meta)


def load_presets(framework: str, config: str, model: str | None = None) -> dict[str, Value]:
    """Return the parameters of a shipped module preset alone, with those of a model preset if one is named."""
    reading = Reading({})
    nowhere = NamedFile(CONFIGS, "primus/configs")

    def read(kind: str, name: str) -> Tree:
        return read_with_extends(relative(nowhere, str(CONFIGS / kind / framework / name)), reading)

    tree = read("modules", config)
    if model is not None:
        tree = merged(read("models", model), tree)
    if reading.problems:
        raise ConfigError(reading.problems)
    return {name: flat(node) for name, node in tree.children.items()}


def _chosen(asked: Tree, *, file_words: bool) -> Tree:
    return Tree({name: node for name, node in asked.children.items() if (name in FILE_WORDS) == file_words}, asked.source)


def _module(outline: Outline, parameters: Tree, file: NamedFile, reading: Reading) -> Module | None:
    """Lay the layers of one module over each other; None if a preset is missing."""
    framework = str(outline.framework.value)
    model = find_preset("models", framework, outline.model, file, reading.problems)
    config = find_preset("modules", framework, outline.config, file, reading.problems)
    if model is None or config is None:
        return None
    tree = _presets(config, model, reading)
    for layer in (outline.overrides, parameters):
        tree = merged(tree, layer)
    return Module(
        role=outline.role,
        framework=outline.framework,
        config=outline.config,
        model=outline.model,
        params={name: flat(node) for name, node in tree.children.items()},
        nodes=tree.children,
    )


def _presets(config: NamedFile, model: NamedFile, reading: Reading) -> Tree:
    """Merge the presets of a module: the model's keys count where the module's preset says nothing."""
    return merged(read_with_extends(model, reading), read_with_extends(config, reading))


def _meta(tree: Tree, file: Path, env: Mapping[str, str], problems: list[str]) -> dict[str, Value]:
    """Return the values that stand above the modules, with defaults for those left out."""
    defaults = {
        "work_group": Value("primus", "default"),
        "user_name": Value(env["USER"], "env USER") if env.get("USER") else Value("user", "default"),
        "exp_name": Value(file.stem, "default"),
        "workspace": Value("./output", "default"),
        "platform": Value(None, "default"),
    }
    meta = {name: _given(tree.children.get(name), defaults[name]) for name in META}
    for name in ("work_group", "user_name", "exp_name"):
        value = meta[name]
        if not _names_a_folder(value.value):
            problems.append(f"{name} {value.value!r} ({value.source}) becomes a part of the run folder; write a plain name")
        meta[name] = replace(value, value=str(value.value))
    workspace = meta["workspace"]
    if not isinstance(workspace.value, str):
        problems.append(f"workspace {workspace.value!r} ({workspace.source}) is the folder that holds all runs; write a path")
    return meta


def _given(node: Node | None, default: Value) -> Value:
    if node is None:
        return default
    value = flat(node)
    return default if value.value is None else value


def _names_a_folder(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return False
    parts = Path(str(value)).parts
    return bool(parts) and not Path(str(value)).is_absolute() and ".." not in parts
