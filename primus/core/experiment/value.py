"""A configuration value together with where it was set, and trees of such values.

`Value` is the name to use. A `Tree` is a map as it stands in a file; `merged` lays one over another (maps merge deep, lists and
scalars replace) and every replaced value stays reachable through `Value.over`, so that nothing is lost without a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

__all__ = [
    "PRESET_PREFIX",
    "RECIPE_PREFIX",
    "Node",
    "Tree",
    "Value",
    "first",
    "flat",
    "is_preset_source",
    "merged",
    "plain",
    "shipped",
]

PRESET_PREFIX = "primus/configs/"
"""How the sources of values from presets shipped with Primus begin."""
RECIPE_PREFIX = "recipe "
"""How those of values begin that a recipe gave."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source: `path:line`, `env NAME` or `cli`."""

    value: Any
    source: str
    over: "Value | None" = field(default=None, compare=False, repr=False)
    """The value that this one replaced."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A map: its children by name, and where it begins."""

    children: Mapping[str, "Node"]
    source: str
    over: Value | None = field(default=None, compare=False, repr=False)
    """The word that this map replaced, if it replaced one."""


Node: TypeAlias = Value | Tree


def is_preset_source(source: str) -> bool:
    """Tell whether a source names a line of a preset shipped with Primus, or a recipe: the user did not write the value."""
    return source.startswith((PRESET_PREFIX, RECIPE_PREFIX))


def plain(node: Node) -> Any:
    """Return what a node stands for, without sources."""
    return {name: plain(child) for name, child in node.children.items()} if isinstance(node, Tree) else node.value


def merged(base: Tree, top: Tree) -> Tree:
    """Lay `top` over `base`."""
    children = dict(base.children)
    for name, node in top.children.items():
        children[name] = _laid_over(children[name], node) if name in children else node
    return Tree(children, top.source, top.over or base.over)


def shipped(value: Value) -> Value | None:
    """Return the shipped preset's value under `value`: the default that the user saw; None if no preset sets it."""
    found: Value | None = value
    while found is not None and not is_preset_source(found.source):
        found = found.over
    return found


def first(value: Value) -> Value:
    """Return the oldest of the values that were replaced by one another: what the presets' common root says."""
    while value.over is not None:
        value = value.over
    return value


def flat(node: Node) -> Value:
    """Return a node as one value; a map keeps the values it replaced only as a whole."""
    return node if isinstance(node, Value) else Value(plain(node), node.source)


def _laid_over(below: Node, node: Node) -> Node:
    if isinstance(node, Tree) and isinstance(below, Tree):
        # A word in between has replaced what lies below it.
        return node if node.over else merged(below, node)
    if isinstance(node, Tree):
        return replace(node, over=node.over or flat(below))
    return replace(node, over=_deepest(node.over, flat(below)))


def _deepest(over: Value | None, below: Value) -> Value:
    """Append `below` to a chain of replaced values."""
    return below if over is None else replace(over, over=_deepest(over.over, below))
