"""One YAML file as a `Tree`: substitutions made, every value with its line.

`read_document` is the name to use. It reports what it can go on from (unset variable, duplicate key, unknown tag) to
`problems`, and stops with `ConfigError` where nothing follows (no file, a syntax error, no map).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from primus.core.experiment.scalars import KNOWN_TAGS, Loader, construct
from primus.core.experiment.substitute import substituted
from primus.core.experiment.value import Node, Tree, Value, plain
from primus.errors import ConfigError

__all__ = ["read_document"]

_MERGE = "tag:yaml.org,2002:merge"


def read_document(path: Path, name: str, env: Mapping[str, str], problems: list[str]) -> Tree:
    """Read the file at `path`; messages and sources call it `name`."""
    root = _compose(path, name)
    if root is None:
        raise ConfigError(f"{name}: the file is empty; it should hold KEY: VALUE lines")
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else f"the single value {root.value!r}"
        raise ConfigError(f"{name}:{_line(root)}: the file holds {kind} instead of a map (KEY: VALUE lines)")
    return _Reader(name, env, problems).tree(root, f"{name}:{_line(root)}")


def _compose(path: Path, name: str) -> yaml.Node | None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{name}: there is no such file") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{name}: is a folder; give the YAML file itself") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name}: cannot be read: {reason}") from error
    try:
        return yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        begun = f" ({error.context} that begins on line {error.context_mark.line + 1})" if error.context_mark else ""
        reason = f"{error.problem}{begun}"
        raise ConfigError(f"{place}: YAML syntax error: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: YAML syntax error: {' '.join(str(error).split())}") from error


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Turns the nodes of one file into values."""

    def __init__(self, name: str, env: Mapping[str, str], problems: list[str]) -> None:
        self.name = name
        self.env = env
        self.problems = problems
        self.open: list[yaml.Node] = []
        """Nodes that are being read: an alias to one of them would never end."""

    def tree(self, node: yaml.MappingNode, source: str) -> Tree:
        """Read a map."""
        children: dict[str, Node] = {}
        lines: dict[str, int] = {}
        inherited: dict[str, Node] = {}
        for key, value in node.value:
            here = f"{self.name}:{_line(key)}"
            if key.tag == _MERGE:
                for name, child in self._merge(value, here).items():
                    inherited.setdefault(name, child)
            elif not isinstance(key, yaml.ScalarNode):
                self.problems.append(f"{here}: a key must be a word, not a list or map")
            elif key.value in lines:
                self.problems.append(
                    f"{here}: {key.value} is set twice in one map; line {lines[key.value]} sets it too. Keep one."
                )
            else:
                lines[key.value] = _line(key)
                children[key.value] = self._node(value, here)
        return Tree({**inherited, **children}, source)

    def _node(self, node: yaml.Node, source: str) -> Node:
        if node in self.open:
            self.problems.append(f"{source}: the alias refers to the very map or list that holds it")
            return Value(None, source)
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self.tree(node, source)
            if isinstance(node, yaml.SequenceNode):
                return Value([plain(self._node(item, f"{self.name}:{_line(item)}")) for item in node.value], source)
            return self._scalar(node, source)
        finally:
            self.open.pop()

    def _scalar(self, node: yaml.Node, source: str) -> Value:
        text: Any = node.value
        if node.tag not in KNOWN_TAGS:
            self.problems.append(f"{source}: the YAML tag {node.tag} is not understood here; write a plain value")
            return Value(None, source)
        if "${" in text:
            return substituted(text, source, self.env, self.problems)
        try:
            return Value(construct(node.tag, text), source)
        except ValueError:
            self.problems.append(f"{source}: {text!r} does not fit its YAML tag {node.tag}")
            return Value(None, source)

    def _merge(self, node: yaml.Node, source: str) -> dict[str, Node]:
        """Return what a merge key (`<<: *base`) brings in; the first of several maps wins."""
        maps = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Node] = {}
        for item in maps:
            child = self._node(item, source)
            if isinstance(child, Tree):
                found = {**child.children, **found}
            else:
                self.problems.append(f"{source}: << takes a map or a list of maps")
        return found
