"""The words behind a command: `key=value`, `--key value`, `--key=value`, `--flag`; dotted keys reach into maps.

Values are read as YAML scalars or as lists and maps in brackets. An option followed by another word or by nothing is a bare
flag and means true; a value that itself looks like `name=...` therefore needs the form `--key=name=...`. Later words win.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from primus.core.experiment.scalars import read_word
from primus.core.experiment.value import Node, Tree, Value, flat

__all__ = ["read_words"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.\-]*=")


def read_words(words: Sequence[str], problems: list[str]) -> Tree:
    """Return the words as a tree whose values have the source `cli`."""
    children: dict[str, Node] = {}
    for name, value in _pairs(words, problems):
        path = name.split(".")
        if not all(path):
            problems.append(f"{name!r} is not a key (cli): a key and its parts between dots must not be empty")
        else:
            _set(children, path, value)
    return Tree(children, "cli")


def _pairs(words: Sequence[str], problems: list[str]) -> Iterator[tuple[str, Value]]:
    position = 0
    while position < len(words):
        word = words[position]
        following = words[position + 1] if position + 1 < len(words) else None
        position += 1
        is_option = word.startswith("--")
        name, equals, text = word.removeprefix("--").partition("=")
        name = name.replace("-", "_") if is_option or equals else name
        if equals:
            yield name, _value(name, text, problems)
        elif not is_option or not name:
            problems.append(f"{word!r} is neither KEY=VALUE nor --KEY VALUE (cli)")
        elif following is None or following.startswith("--") or _ASSIGNMENT.match(following):
            yield name, Value(True, "cli")
        else:
            position += 1
            yield name, _value(name, following, problems)


def _value(name: str, text: str, problems: list[str]) -> Value:
    try:
        return Value(read_word(text), "cli")
    except ValueError:
        problems.append(f"{name}: {text} (cli) is not a YAML value; check brackets and quotes")
        return Value(text, "cli")


def _set(children: dict[str, Node], path: list[str], value: Value) -> None:
    """Put `value` at a dotted path, making maps on the way."""
    head, *rest = path
    if not rest:
        earlier = children.get(head)
        children[head] = value if earlier is None else replace(value, over=flat(earlier))
        return
    below = children.get(head)
    inner = dict(below.children) if isinstance(below, Tree) else {}
    _set(inner, rest, value)
    children[head] = Tree(inner, "cli", below.over if isinstance(below, Tree) else below)
