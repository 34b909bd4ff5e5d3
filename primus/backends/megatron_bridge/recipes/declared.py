"""A container that other people's code made: `read_as_declared` gives every field the type that it declares.

What a flavor of one's own sets is a value like any other: a map makes a sub-config, a number may be text, and a field that is
misspelt does nothing.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from primus.backends.megatron_bridge.assignment import Fault, assign, field_names, must_be_there, sub_configs_of
from primus.backends.megatron_bridge.container import ConfigContainer
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["read_as_declared"]

_PLAIN = (bool, int, float, str, list, dict, type(None))


def read_as_declared(config: ConfigContainer, *, name: str) -> None:
    """Read the fields of a container, in place; ConfigError lists those that cannot be, behind the name of its flavor."""
    problems = [f"{name} sets {fault}" for fault in _faults(config, "")]
    if problems:
        raise ConfigError(problems)


def _faults(part: Any, path: str) -> Iterator[str]:
    kind = type(part)
    for name, value in list(vars(part).items()):
        if name.startswith("_"):
            continue
        inner = sub_configs_of(kind, name) if name in field_names(kind) else ()
        if is_dataclass(value) and isinstance(value, inner):
            yield from _faults(value, f"{path}{name}.")
        elif value is None and inner and must_be_there(kind, name):
            yield f"{path}{name} null, which must be {' or '.join(each.__name__ for each in inner)}."
        else:
            try:
                assign(part, (name,), _plain(name, value))
            except Fault as fault:
                said = show_value(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
                yield f"{path}{name} {said}, which {fault}"


def _plain(name: str, value: Any) -> Any:
    """Return a value as YAML would hold it."""
    if isinstance(value, (tuple, set)):
        return list(value)
    return str(value) if name.endswith("dtype") and value is not None else value
