"""The words of a module in one form, before a recipe is called: `normalised` is the name to use.

A word and a map can lie over each other, as `peft: dora` in a file and `peft.dim=4` on the command line do: both are said then.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from primus.backends.megatron_bridge.dataset_arguments import FILES, LISTS, normalise_dataset_arguments
from primus.backends.megatron_bridge.translate.precision import fields_of
from primus.core.experiment import Value
from primus.core.experiment.value import Node, Tree, flat, plain
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["node_of", "normalised"]

_FIELD_OF_WORD = {"peft": "type", "optimizer": "optimizer"}
"""Maps that a word can stand for, and the entry that says the same."""
_PRECISIONS = ("precision_config", "mixed_precision")
_NULLS = ("None", "null")
"""Texts that mean null, as Python and a quoted YAML word spell it."""


def node_of(value: Any, source: str) -> Node:
    """Return a plain value as a node whose leaves all have one source."""
    if isinstance(value, Mapping) and value:
        return Tree({str(name): node_of(each, source) for name, each in value.items()}, source)
    return Value(value, source)


def normalised(nodes: Mapping[str, Node], problems: list[str]) -> dict[str, Node]:
    """Return the words with null and the names of data in one form; maps that came as one value become trees."""
    found: dict[str, Node] = {}
    for name, node in nodes.items():
        try:
            found[name] = _with_word(name, node)
        except ConfigError as error:
            problems += [f"{problem} ({flat(node).source})" for problem in error.problems]
    words = [name for name in (*LISTS, *FILES, "mock", "mock_data") if name in found]
    data = {name: plain(found[name]) for name in words}
    problems += _two_mocks({name: found[name] for name in ("mock", "mock_data") if name in found})
    places = {name: flat(found.pop(name)).source for name in words}
    try:
        normalise_dataset_arguments(data)
    except ConfigError as error:
        problems += [f"{problem} ({', '.join(places.values())})" for problem in error.problems]
        return found
    return found | {name: Value(value, places.get(name) or next(iter(places.values()))) for name, value in data.items()}


def _two_mocks(words: Mapping[str, Node]) -> Iterator[str]:
    """Yield what is wrong if `mock` and its older name differ, of which the first alone would be read."""
    said = {name: flat(node) for name, node in words.items()}
    if len(said) > 1 and None not in (each.value for each in said.values()) and said["mock"].value != said["mock_data"].value:
        both = " and ".join(f"{name} {show_value(each.value)} ({each.source})" for name, each in said.items())
        yield f"{both} are two names of one thing, and differ; keep mock."


def _with_word(name: str, node: Node) -> Node:
    """Return a map with what the word that it replaced says, and a word with the map below it if it is one field of that."""
    if isinstance(node, Tree):
        return replace(node, children={**_said_by(name, node.over), **node.children}, over=None) if node.over else node
    if isinstance(node.value, dict):
        return node_of(node.value, node.source)
    if isinstance(node.value, str) and node.value in _NULLS:
        return replace(node, value=None)
    if name == "optimizer" and node.over is not None and isinstance(node.over.value, dict):
        return Tree({**_children(node_of(node.over.value, node.over.source)), name: node}, node.source)
    return node


def _said_by(name: str, word: Value) -> Mapping[str, Node]:
    """Return the entries of a map that a word stands for; ConfigError for a precision that is none."""
    if name in _PRECISIONS and isinstance(word.value, str) and word.value not in _NULLS:
        return {field: Value(value, word.source) for field, value in fields_of(word.value).items()}
    if name == "peft" and word.value in (None, *_NULLS):
        return {"type": replace(word, value="none")}
    return {_FIELD_OF_WORD[name]: word} if name in _FIELD_OF_WORD and word.value is not None else {}


def _children(node: Node) -> Mapping[str, Node]:
    return node.children if isinstance(node, Tree) else {}
