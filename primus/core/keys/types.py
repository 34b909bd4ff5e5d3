"""The small type language of key rows, and how a YAML value becomes a value of such a type.

Names: `bool`, `int`, `float`, `str`, `path`, `dict`, `any`, `list[...]`; `a|b` for either, a final `?` for "or null".
Conversion is generous where the meaning is certain (`"1e-3"` for a float, `2` for a float, `"2 2 12"` for a list of ints,
`"None"` for null) and refuses the rest: true is not a number, and 1 is not true.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from primus.core.experiment.scalars import read_scalar, read_word

__all__ = ["NotOfType", "parse_type"]


class NotOfType(Exception):  # noqa: N818 - it carries a verdict to the checker, not an error to a user
    """The value cannot be read as the type."""


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """A parsed type."""

    members: tuple[str, ...]
    """Alternatives in the order of preference."""
    is_nullable: bool

    def convert(self, value: Any) -> Any:
        """Return `value` as this type; NotOfType if that changes its meaning."""
        if value is None or (self.is_nullable and value in ("None", "null")):
            if self.is_nullable:
                return None
            raise NotOfType
        for member in self.members:
            if _is_exactly(member, value):
                return value
        for member in self.members:
            try:
                return _convert(member, value)
            except (NotOfType, ValueError):
                continue
        raise NotOfType

    def __str__(self) -> str:
        """Return the type in words for a message."""
        names = [_WORDS.get(member, member) for member in self.members] + ["null"] * self.is_nullable
        return " or ".join(_list_in_words(name) for name in names)


@cache
def parse_type(text: str) -> TypeSpec:
    """Read a type of a key row; ValueError if it is not one."""
    members = tuple(text.removesuffix("?").split("|"))
    for member in members:
        item = _item(member)
        if (item or member) not in _SCALARS:
            raise ValueError(f"{text!r} is not a type of a key row")
    return TypeSpec(members, text.endswith("?"))


_WORDS = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "text", "path": "a path", "dict": "a map"}
_PLURALS = {"int": "integers", "float": "numbers", "str": "texts", "path": "paths", "any": "values"}


def _list_in_words(name: str) -> str:
    item = _item(name)
    return f"a list of {_PLURALS.get(item, item)}" if item else name


def _item(member: str) -> str | None:
    match = re.fullmatch(r"list\[(\w+)\]", member)
    return match.group(1) if match else None


def _is_exactly(member: str, value: Any) -> bool:
    item = _item(member)
    if item:
        return isinstance(value, list) and all(_is_exactly(item, each) for each in value)
    if member == "float":
        return isinstance(value, float) and math.isfinite(value)
    exact = {"bool": bool, "int": int, "str": str, "path": str, "dict": dict, "any": object}[member]
    return isinstance(value, exact) and (exact is not int or not isinstance(value, bool))


def _convert(member: str, value: Any) -> Any:
    item = _item(member)
    return _to_list(item, value) if item else _SCALARS[member](value)


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise NotOfType


def _to_int(value: Any) -> int:
    number = read_scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number // 1:
        raise NotOfType
    return int(number)


def _to_float(value: Any) -> float:
    number = read_scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        raise NotOfType
    return float(number)


def _to_text(value: Any) -> str:
    # A float is refused because its text is lost: 1.10 would become "1.1".
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise NotOfType
    return str(value)


def _to_dict(value: Any) -> dict[str, Any]:
    read = read_word(value) if isinstance(value, str) else value
    if not isinstance(read, dict):
        raise NotOfType
    return read


def _to_list(item: str, value: Any) -> list[Any]:
    """Return a list; a text is cut at blanks (numbers at commas too), and a single scalar is a list of one."""
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("["):
            value = read_word(text)
        else:
            value = [part for part in re.split(r"\s+" if item in ("str", "path") else r"[,\s]+", text) if part]
    items = value if isinstance(value, list) else [value]
    convert = _text_of_item if item in ("str", "path") else _SCALARS[item]
    return [convert(each) for each in items]


def _text_of_item(value: Any) -> str:
    """Return a list item as text: weights stand beside paths there (`[0.3, a, 0.7, b]`), and numbers read back equal."""
    return repr(value) if isinstance(value, float) else _to_text(value)


def _anything(value: Any) -> Any:
    return value


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "str": _to_text,
    "path": _to_text,
    "dict": _to_dict,
    "any": _anything,
}
