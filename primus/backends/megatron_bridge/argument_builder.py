"""`MegatronBridgeArgBuilder` lays dictionaries of arguments over each other, before a recipe is called.

Maps combine key by key, anything else replaces what lies below it, and null is a value like any other: what it clears is
decided when the arguments are merged into the recipe's container.
"""

import copy
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

__all__ = ["MegatronBridgeArgBuilder", "plain_arguments"]


class MegatronBridgeArgBuilder:
    """Arguments in layers; later ones win."""

    def __init__(self) -> None:
        """Start without arguments."""
        self._arguments: dict[str, Any] = {}

    def update(self, values: Mapping[str, Any] | Namespace | SimpleNamespace) -> "MegatronBridgeArgBuilder":
        """Lay arguments over those that are there; namespaces count as maps. Returns the builder."""
        self._arguments = _laid_over(self._arguments, plain_arguments(values))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return a copy that shares nothing with the builder."""
        return copy.deepcopy(self._arguments)

    def to_namespace(self) -> SimpleNamespace:
        """Return the arguments as attributes, maps within them too."""
        return SimpleNamespace(**{name: _namespace(value) for name, value in self.to_dict().items()})

    def finalize(self) -> SimpleNamespace:
        """Return what `to_namespace` does."""
        return self.to_namespace()


def plain_arguments(values: Mapping[str, Any] | Namespace | SimpleNamespace) -> dict[str, Any]:
    """Return arguments as maps of maps, copied."""
    items = values.items() if isinstance(values, Mapping) else vars(values).items()
    return {str(name): _plain(value) for name, value in items}


def _plain(value: Any) -> Any:
    return plain_arguments(value) if isinstance(value, (Mapping, Namespace, SimpleNamespace)) else copy.deepcopy(value)


def _namespace(value: Any) -> Any:
    return SimpleNamespace(**{name: _namespace(each) for name, each in value.items()}) if isinstance(value, dict) else value


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        merged[name] = _laid_over(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged
