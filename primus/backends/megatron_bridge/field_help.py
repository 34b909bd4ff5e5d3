"""What a field of the container means, in words for a terminal: `described` is the name to use.

A field that is a flat key has that key's sentence; those of rows and adapters are told at length by a page.
"""

import re
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.assignment import SCHEMES, sub_configs_of
from primus.backends.megatron_bridge.container import ConfigContainer
from primus.backends.megatron_bridge.translate.fields import (
    NEGATED,
    OF_ROWS_WITHOUT_EFFECT,
    SIMPLE_PARTS,
    WITHOUT_EFFECT,
    key_of,
    refusal,
)

__all__ = ["described"]

_PAGES = {"dataset": "docs/posttraining.md", "peft": "docs/adapters.md", "comm_overlap": "docs/posttraining.md"}


def described(name: str) -> list[str]:
    """Return lines on each field of this path, or of this last name if it is no path; none if there is no such field."""
    found: dict[str, Field[Any]] = {}
    for path, each in _fields(ConfigContainer, ""):
        if name in (path, each.name):
            found.setdefault(path, each)
    return [line for path, each in found.items() for line in _lines(path, each)]


def _fields(kind: type, above: str) -> Iterator[tuple[str, Field[Any]]]:
    """Yield the fields below a dataclass by their paths."""
    for each in fields(kind):
        path = f"{above}{each.name}"
        inner = tuple(SCHEMES.values()) if path == "peft" else sub_configs_of(kind, each.name)
        if above or not inner:
            yield path, each
        for part in inner:
            yield from _fields(part, f"{path}.")


def _lines(path: str, each: Field[Any]) -> Iterator[str]:
    part, _, _ = path.partition(".")
    yield path
    yield f"  {_meaning(path, part)}"
    yield ""
    kind = each.type.__name__ if isinstance(each.type, type) else re.sub(r"[\w.]+\.(\w+)", r"\1", str(each.type))
    yield f"  type     {kind}"
    yield f"  written  as maps in YAML, {path}=... on the command line"


def _meaning(path: str, part: str) -> str:
    reason = WITHOUT_EFFECT.get(path) or OF_ROWS_WITHOUT_EFFECT.get(path)
    if reason:
        return f"Changes nothing here: {reason}."
    if path in NEGATED:
        return f"The contrary of the key `{NEGATED[path]}`: {KEYS[NEGATED[path]].doc}"
    key = key_of(path) or path.rpartition(".")[2]
    if key in KEYS and part not in _PAGES:
        return f"The key `{key}`: {KEYS[key].doc}"
    if part in SIMPLE_PARTS and refusal(path):
        return "Not implemented yet: a run is refused where it leaves its default."
    return f"A field of `{part}`" + (f": see {_PAGES[part]}." if part in _PAGES else ".")
