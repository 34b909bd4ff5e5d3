"""The flat values of one module as derivations, rules and announcements read them.

`Params` is the name to use: `params["lr"]` is the typed value, `params.where("lr")` says it with its origin. It is immutable;
a `Rewrite` makes a new one. A key whose value was already reported as wrong is `Unreadable`: whoever needs it is skipped, so
that one mistake gives one message.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from primus.core.experiment import Value, is_preset_source, shipped
from primus.core.keys import show_value
from primus.engine.config import RunConfig

__all__ = ["Derivation", "Notices", "Params", "Problems", "Rewrite", "Rule", "Unreadable", "or_list"]

Problems = Iterator[str]
Notices = Iterator[str]


class Unreadable(Exception):  # noqa: N818 - it is a signal between rules, never shown to a user
    """A needed value is wrong and that has been reported; the reader has nothing to add."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewrite:
    """A flat value that gives way to another one."""

    key: str
    value: Any
    reason: str
    """Why, as it stands behind the value in config.yaml."""
    notice: str | None = None
    """What the user reads at start; None: it says nothing new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Typed flat values, the run they belong to and the number of ranks."""

    values: Mapping[str, Value]
    run: RunConfig
    world_size: int
    working_folder: Path
    """What relative paths of inputs start from."""
    unreadable: frozenset[str] = frozenset()
    """Keys that were reported as wrong."""
    has_rows: bool = False
    """Rows to fine-tune on are given apart from the flat values: no documents are asked for."""

    def __getitem__(self, key: str) -> Any:
        if key in self.unreadable:
            raise Unreadable(key)
        return self.values[key].value

    def required(self, key: str) -> Any:
        """Return a value that must not be null; a rule of its own reports it if it is."""
        value = self[key]
        if value is None:
            raise Unreadable(key)
        return value

    def source(self, key: str) -> str:
        """Return where the value was set."""
        return self.values[key].source

    def where(self, key: str) -> str:
        """Return `key value (source)` for a message."""
        return f"{key} {show_value(self[key])} ({self.source(key)})"

    def is_preset(self, key: str) -> bool:
        """Tell whether the value stands in a preset shipped with Primus, that is, the user did not choose it."""
        return is_preset_source(self.source(key))

    def is_chosen(self, key: str) -> bool:
        """Tell whether the user set this key (experiment, command line or a preset of their own)."""
        return not self.is_preset(key) and not self.source(key).startswith("derived")

    def asks_for_nothing(self, key: str) -> bool:
        """Tell whether the value is null, or off as in the shipped presets."""
        default = shipped(self.values[key])
        return self[key] is None or not (self[key] or (default and default.value))

    def rewritten(self, rewrite: Rewrite) -> "Params":
        """Return the same parameters with one value replaced."""
        value = Value(rewrite.value, f"derived: {rewrite.reason}")
        return replace(self, values={**self.values, rewrite.key: value})

    def input_path(self, text: str) -> str:
        """Return a path that is read, made absolute from the working folder."""
        return os.path.normpath(self.working_folder / Path(text).expanduser())

    def output_path(self, text: str) -> str:
        """Return a path that is written, made absolute from the run folder."""
        return str(Path(self.run.folder) / Path(text).expanduser())


Rule = Callable[[Params], Problems]
"""Yields one sentence for each way in which values exclude each other."""
Derivation = Callable[[Params], Iterator[Rewrite]]
"""Yields the values that give way to others."""


def or_list(choices: Iterable[Any]) -> str:
    """Return `a, b or c`."""
    words = [show_value(c) for c in choices]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
