"""A module's values as one looks at them: `resolved_values` is the name to use.

The words of the files come first, then every field of the container that they and the recipe make, by its dotted path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from primus.backends.megatron.keys import KEYS as MEGATRON
from primus.backends.megatron_bridge.config_utils import Merged, merged
from primus.backends.megatron_bridge.keys import KEYS
from primus.core.experiment import Module, Value
from primus.core.experiment.value import RECIPE_PREFIX
from primus.core.keys import check_values
from primus.errors import ConfigError

__all__ = ["resolved_values"]


def resolved_values(module: Module) -> tuple[dict[str, Value], list[str]]:
    """Return values with their sources, typed where a row or a field says how, and what is wrong with them."""
    rows = {**MEGATRON, **KEYS}
    words = {name: value for name, value in module.params.items() if name in rows}
    values = {**module.params, **check_values(rows, words).typed}
    try:
        found = merged(module.nodes)
    except ConfigError as error:
        return values, list(error.problems)
    return {**values, **dict(_fields(found, f"{RECIPE_PREFIX}{module.params['recipe'].value}"))}, []


def _fields(found: Merged, recipe: str) -> Iterator[tuple[str, Value]]:
    for path, value in _leaves("", found.config):
        yield path, Value(value, _source(path, found.sources) or recipe)


def _source(path: str, sources: Mapping[str, str]) -> str | None:
    """Return where a field, or the sub-config that it is in, was decided."""
    while path:
        if path in sources:
            return sources[path]
        path = path.rpartition(".")[0]
    return None


def _leaves(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    if not is_dataclass(node):
        yield path, node
        return
    for each in fields(node):
        yield from _leaves(f"{path}.{each.name}" if path else each.name, getattr(node, each.name))
