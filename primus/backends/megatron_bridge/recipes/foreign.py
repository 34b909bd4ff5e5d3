"""Containers of an installed `megatron.bridge`, by the names of their fields.

What has a field here is taken over; what has none must stand at its default, or the recipe is refused with the field's name.
"""

import dataclasses
import functools
from enum import Enum
from typing import Any, get_args, get_type_hints

from primus.backends.megatron_bridge.assignment import SCHEMES
from primus.backends.megatron_bridge.container import PEFT, ConfigContainer
from primus.backends.megatron_bridge.recipes.flavor import Function
from primus.backends.megatron_bridge.translate.fields import WITHOUT_EFFECT
from primus.errors import ConfigError

__all__ = ["translated", "translating"]

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SCHEMES = {kind.__name__: kind for kind in SCHEMES.values()}
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))


def translating(function: Any, where: str) -> Function:
    """Return a flavor of theirs as one that returns a container of ours; it keeps its signature."""

    @functools.wraps(function)
    def flavor(**given: Any) -> ConfigContainer:
        return translated(function(**given), where)

    return flavor


def translated(theirs: Any, where: str) -> ConfigContainer:
    """Return their container as ours; ConfigError lists every value that has no place here."""
    problems: list[str] = []
    hints = get_type_hints(ConfigContainer)
    parts: dict[str, Any] = {}
    if not isinstance(theirs, _PLAIN):
        _refuse_others(theirs, _names(ConfigContainer), "", problems)
    for field in dataclasses.fields(ConfigContainer):
        part = getattr(theirs, field.name, None)
        if part is not None:
            parts[field.name] = (
                part if isinstance(part, _PLAIN) else _part(part, _classes(hints[field.name]), field.name, problems)
            )
    if problems:
        raise ConfigError([f"recipe {where}: {problem}" for problem in problems])
    missing = [
        field.name
        for field in dataclasses.fields(ConfigContainer)
        if field.name not in parts and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"recipe {where} returned no ConfigContainer: it has no {', '.join(missing)}")
    return ConfigContainer(**parts)


def _classes(hint: Any) -> list[type]:
    return [each for each in (get_args(hint) or (hint,)) if isinstance(each, type) and dataclasses.is_dataclass(each)]


def _part(theirs: Any, classes: list[type], path: str, problems: list[str]) -> Any:
    """Return a sub-config of the class whose fields hold most of theirs."""
    names = _fields_of(theirs)
    if path == "peft":
        classes = [_SCHEMES.get(type(theirs).__name__, PEFT)]
        if classes == [PEFT]:
            problems.append(f"peft is a {type(theirs).__name__}; there are {', '.join(_SCHEMES)}")
            return None
    ours = max(classes, key=lambda each: len(_names(each).intersection(names)))
    found = ours()
    for name in names:
        if name in _names(ours):
            setattr(found, name, _value(getattr(theirs, name, None), f"{path}.{name}", getattr(found, name), problems))
    _refuse_others(theirs, _names(ours), f"{path}.", problems)
    return found


def _fields_of(theirs: Any) -> list[str]:
    """Return the names of the fields of theirs, or of what is no dataclass."""
    return [field.name for field in dataclasses.fields(theirs)] if dataclasses.is_dataclass(theirs) else list(vars(theirs))


def _refuse_others(theirs: Any, ours: set[str], path: str, problems: list[str]) -> None:
    """Tell of what has no field here and is not at its default."""
    for name in _fields_of(theirs):
        value = getattr(theirs, name, None)
        if name not in ours and not _is_default(theirs, name, value):
            problems.append(f"{path}{name} is {value!r}, and this engine has no such field")


def _value(value: Any, path: str, ours: Any, problems: list[str]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        from primus.backends.megatron_bridge import container

        named = getattr(container, type(value).__name__, None)
        return _part(value, [named], path, problems) if named is not None else _refused(value, path, problems)
    if isinstance(value, Enum):
        return value.name
    dtype = str(value).removeprefix("torch.")
    if dtype in _DTYPES:
        return _DTYPES[dtype]
    if callable(value) and path == "model.activation_func":
        return value.__name__
    return ours if callable(value) or path in WITHOUT_EFFECT else _refused(value, path, problems)


def _refused(value: Any, path: str, problems: list[str]) -> None:
    problems.append(f"{path} is a {type(value).__name__}, which has no counterpart here")


def _names(ours: type) -> set[str]:
    return {field.name for field in dataclasses.fields(ours)}


def _is_default(theirs: Any, name: str, value: Any) -> bool:
    """Tell whether a value is the default of its class; functions and what their classes compute count as such."""
    if name.startswith("_") or callable(value):
        return True
    if not dataclasses.is_dataclass(theirs):
        return value is None
    for field in dataclasses.fields(theirs):
        if field.name == name:
            if not field.init:
                return True
            if field.default_factory is not dataclasses.MISSING:
                return bool(value == field.default_factory())
            return field.default is not dataclasses.MISSING and bool(value == field.default)
    return True
