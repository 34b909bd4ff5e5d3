"""Scalars as people write them: `1e-5` is a number, `true` in any case a bool, `2024-01-01` and `1:30` stay text.

YAML 1.1 otherwise, as PyYAML reads it. `Loader` composes documents with these rules; `read_scalar` reads one text on its own.
"""

import re
from typing import Any

import yaml

__all__ = ["KNOWN_TAGS", "Loader", "construct", "read_scalar", "read_word"]

_PREFIX = "tag:yaml.org,2002:"
KNOWN_TAGS = {f"{_PREFIX}{name}" for name in ("null", "bool", "int", "float", "str")}
_DIGITS = "[0-9][0-9_]*"
_EXPONENT = "[eE][-+]?[0-9]+"
_RULES = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?i:true|false)|yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF", list("tTfFyYnNoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)", list("-+0123456789")),
    (
        "float",
        rf"[-+]?(?:(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:{_EXPONENT})?|{_DIGITS}{_EXPONENT}|\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN",
        list("-+0123456789."),
    ),
    ("merge", "<<", ["<"]),
)
_INFINITIES = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}


class Loader(yaml.CSafeLoader):
    """Composes YAML nodes; only the tags of plain scalars differ from PyYAML's."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own protocol


for _name, _pattern, _first in _RULES:
    Loader.add_implicit_resolver(_PREFIX + _name, re.compile(f"^(?:{_pattern})$"), _first)


def read_scalar(text: str) -> Any:
    """Return what `text` would be as a plain scalar of a file."""
    text = text.strip()
    loader = Loader("")
    try:
        return construct(loader.resolve(yaml.ScalarNode, text, (True, False)), text)
    finally:
        loader.dispose()


def read_word(text: str) -> Any:
    """Return a value from the command line: a scalar, a quoted string, or a list or map in brackets; or ValueError."""
    stripped = text.strip()
    if stripped[:1] in ("[", "{", '"', "'"):
        try:
            return _plain(yaml.compose(stripped, Loader=Loader))
        except yaml.YAMLError as error:
            raise ValueError(f"{text} is not YAML") from error
    return read_scalar(stripped)


def construct(tag: str, text: str) -> Any:
    """Return the value of a scalar whose tag is known."""
    kind = tag.removeprefix(_PREFIX)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if kind == "int":
        return int(text, 10 if text.lstrip("-+").isdigit() else 0)
    if kind == "float":
        return float(_INFINITIES.get(text.lower(), text))
    return text


def _plain(node: yaml.Node | None) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    return None if node is None else construct(node.tag, node.value)
