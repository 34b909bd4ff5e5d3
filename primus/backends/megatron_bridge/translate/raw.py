"""`Raw`: a recipe's container after the user's values were merged in, and where those stand."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from primus.backends.megatron_bridge.container import ConfigContainer
from primus.core.experiment import Value
from primus.core.experiment.value import RECIPE_PREFIX
from primus.core.keys import show_value

__all__ = ["Raw"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Raw:
    """A container, and the place of every field that the user decided."""

    config: ConfigContainer
    sources: Mapping[str, str]
    """By dotted path."""
    recipe: str
    """As the user named it."""

    def at(self, path: str) -> Any:
        """Return a field's value; None where its sub-config is absent."""
        value: Any = self.config
        for name in path.split("."):
            value = None if value is None else getattr(value, name, None)
        return value

    def is_chosen(self, path: str) -> bool:
        """Tell whether the user decided a field, or an entry of a map."""
        return self._decided(path) is not None

    def source(self, *paths: str) -> str:
        """Return where the first field that the user decided was set; the recipe, if none was."""
        return next((place for path in paths if (place := self._decided(path))), f"{RECIPE_PREFIX}{self.recipe}")

    def _decided(self, path: str) -> str | None:
        if path in self.sources or not isinstance(self.at(path), Mapping):
            return self.sources.get(path)
        return next((place for name, place in self.sources.items() if name.startswith(f"{path}.")), None)

    def where(self, path: str) -> str:
        """Return `path value (source)` for a message."""
        return f"{path} {show_value(self.at(path))} ({self.source(path)})"

    def value(self, value: Any, *paths: str) -> Value:
        """Return a value that follows from fields."""
        return Value(value, self.source(*paths))

    def fields(self, part: str) -> Iterable[tuple[str, Any, Any]]:
        """Yield name, value and default of the fields of a sub-config, if it is there."""
        held = self.at(part)
        if held is None or isinstance(held, str):
            return
        plain = type(held)()
        for each in fields(held):
            yield each.name, getattr(held, each.name), getattr(plain, each.name)
