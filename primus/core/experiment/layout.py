"""The two ways of laying out an experiment file, read into one `Outline` a module.

1. `modules.<role>.{framework,config,model,overrides}`.
2. `framework` at the top, with `modules.<role>.overrides` and `models.<role>.overrides`; the presets are then
   `pre_trainer.yaml` and `language_model.yaml` unless the module names others.
"""

from dataclasses import dataclass

from primus.core.experiment.experiment import FILE_WORDS
from primus.core.experiment.extends import NamedFile
from primus.core.experiment.nearest import did_you_mean, nearest
from primus.core.experiment.presets import check_framework, shipped_presets
from primus.core.experiment.value import Node, Tree, Value, merged, plain

__all__ = ["Outline", "outlines"]

_MODULE = ("framework", "config", "model", "overrides")
_MODEL = ("model", "overrides")
_DEFAULT_ROLE = "pre_trainer"
_DEFAULTS = {"config": "pre_trainer.yaml", "model": "language_model.yaml"}
_KINDS = {"config": "modules", "model": "models"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A module before its presets are read."""

    role: str
    framework: Value
    config: Value
    model: Value
    overrides: Tree


def outlines(tree: Tree, file: NamedFile, problems: list[str]) -> list[Outline]:
    """Return the outlines of all modules that can be read."""
    _check_words(tree, FILE_WORDS, "at the top of an experiment", problems)
    modules = _maps(tree, "modules", problems)
    models = _maps(tree, "models", problems)
    if not modules and "framework" in tree.children and "modules" not in tree.children:
        modules = {_DEFAULT_ROLE: Tree({}, tree.children["framework"].source)}
    if not modules:
        problems.append(
            f"{file.name}: there is no module; write modules: with pre_trainer: and its framework, config, model and overrides"
        )
    owners = {name: _owner(name, node, list(modules), problems) for name, node in models.items()}
    found = []
    for role, module in modules.items():
        mine = [node for name, node in models.items() if owners[name] == role]
        outline = _outline(role, module, mine, tree.children.get("framework"), problems)
        if outline is not None:
            found.append(outline)
    return found


def _outline(role: str, module: Tree, models: list[Tree], shared: Node | None, problems: list[str]) -> Outline | None:
    place = f"modules.{role}"
    _check_words(module, _MODULE, f"in {place}", problems, parameters_go="overrides")
    framework = module.children.get("framework", shared)
    if not isinstance(framework, Value) or framework.value is None:
        problems.append(f"{place} ({module.source}) has no framework; write framework: megatron, or megatron_bridge")
        return None
    if not check_framework(framework, problems):
        return None
    overrides = _overrides(module, place, problems)
    chosen = dict(module.children)
    for model in models:
        _check_words(model, _MODEL, "in models", problems, parameters_go="overrides")
        theirs = _overrides(model, "models", problems)
        _check_disjoint(overrides, theirs, problems)
        overrides = merged(theirs, overrides)
        chosen = {**model.children, **chosen}
    named = {word: _preset(word, chosen, place, framework, module, shared is not None, problems) for word in _DEFAULTS}
    config, model_preset = named["config"], named["model"]
    if config is None or model_preset is None:
        return None
    return Outline(role=role, framework=framework, config=config, model=model_preset, overrides=overrides)


def _preset(
    word: str, chosen: dict[str, Node], place: str, framework: Value, module: Tree, has_default: bool, problems: list[str]
) -> Value | None:
    node = chosen.get(word)
    if isinstance(node, Value) and isinstance(node.value, str):
        return node
    if node is None and has_default:
        return Value(_DEFAULTS[word], "default")
    given = "is missing" if node is None else f"{plain(node)!r} ({node.source}) is not the name of a preset"
    there_are = ", ".join(shipped_presets(_KINDS[word], str(framework.value))) or "none"
    problems.append(f"{place} ({module.source}): {word} {given}; there are {there_are}")
    return None


def _owner(name: str, node: Tree, roles: list[str], problems: list[str]) -> str | None:
    """Return the module that an entry of `models` belongs to: same name, same name plus `er`, or the only module."""
    for role in (name, f"{name}er"):
        if role in roles:
            return role
    if len(roles) == 1:
        return roles[0]
    if roles:
        problems.append(f"models.{name} ({node.source}) belongs to no module; name it like one of {', '.join(roles)}")
    return None


def _overrides(tree: Tree, place: str, problems: list[str]) -> Tree:
    node = tree.children.get("overrides", Tree({}, tree.source))
    if isinstance(node, Tree):
        return node
    if node.value is not None:
        problems.append(f"{node.source}: {place}.overrides holds {plain(node)!r} instead of a map (KEY: VALUE lines)")
    return Tree({}, node.source)


def _check_disjoint(ours: Tree, theirs: Tree, problems: list[str]) -> None:
    for name in ours.children.keys() & theirs.children.keys():
        places = f"under modules ({ours.children[name].source}) and under models ({theirs.children[name].source})"
        problems.append(f"{name} is set {places}; keep one")


def _maps(tree: Tree, word: str, problems: list[str]) -> dict[str, Tree]:
    """Return the maps below `modules` or `models`; an empty entry counts as an empty map."""
    node = tree.children.get(word, Tree({}, tree.source))
    if not isinstance(node, Tree):
        if node.value is not None:
            problems.append(f"{node.source}: {word} holds {plain(node)!r} instead of a map of roles")
        return {}
    found = {}
    for role, child in node.children.items():
        if isinstance(child, Tree):
            found[role] = child
        elif child.value is None:
            found[role] = Tree({}, child.source)
        else:
            problems.append(f"{child.source}: {word}.{role} holds {plain(child)!r} instead of a map")
    return found


def _check_words(
    tree: Tree, known: tuple[str, ...], where: str, problems: list[str], *, parameters_go: str | None = None
) -> None:
    for name, node in tree.children.items():
        if name in known:
            continue
        hint = did_you_mean(name, known)
        if parameters_go is not None and not nearest(name, known):
            hint += f" Parameters stand under {parameters_go}."
        problems.append(f"{name} ({node.source}) is not a word {where}. {hint}")
