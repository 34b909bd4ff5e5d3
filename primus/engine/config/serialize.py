"""The container as plain data and as a YAML file: `dump` writes it, `load` reads it back to an equal container.

Reading is strict: an unknown field, a missing required one or a value of the wrong type is a `ConfigError` that names its
dotted path, so a hand-edited file fails as clearly as an experiment does.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from primus.engine.config.container import ConfigContainer
from primus.errors import ConfigError

__all__ = ["dump", "from_dict", "load", "to_dict"]

Comments = Mapping[str, str]


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config dataclass as nested dicts of YAML scalars and lists."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def from_dict(data: Mapping[str, Any], cls: type = ConfigContainer, path: str = "") -> Any:
    """Build `cls` from nested dicts; ConfigError lists every problem below `path`."""
    problems: list[str] = []
    value = _build(cls, data, path, problems)
    if problems:
        raise ConfigError(problems)
    return value


def load(file: Path) -> ConfigContainer:
    """Read a container file written by `dump`; ConfigError if it is not one."""
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read as a container file: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: a container file is a map, this is {type(data).__name__}")
    if "modules" in data:
        raise ConfigError(f"{file} is an experiment, from which `primus train pretrain --config {file}` makes the container")
    return typing.cast(ConfigContainer, from_dict(data))


def dump(config: ConfigContainer, comments: Comments | None = None) -> str:
    """Return the container as YAML; `comments` maps dotted paths to a note written behind the value."""
    lines: list[str] = []
    _lines(to_dict(config), "", 0, comments or {}, lines)
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _lines(data: Mapping[str, Any], path: str, depth: int, comments: Comments, out: list[str]) -> None:
    for name, value in data.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            out.append(f"{'  ' * depth}{name}:")
            _lines(value, here, depth + 1, comments, out)
        else:
            text = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
            note = f"  # {comments[here]}" if here in comments else ""
            out.append(f"{'  ' * depth}{name}: {text}{note}")


def _build(cls: type, data: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(data, Mapping):
        problems.append(f"{path or 'container'}: expected a map, got {data!r}")
        return None
    fields = {f.name: f for f in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    problems += [f"{_join(path, name)}: unknown field" for name in data if name not in fields]
    values = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], _join(path, name), problems)
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            problems.append(f"{_join(path, name)}: missing")
    return None if problems else cls(**values)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _convert(hint: Any, value: Any, path: str, problems: list[str]) -> Any:
    """Check `value` against a field's type; tuples come from lists, floats may be written as ints."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path, problems)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        (inner,) = [a for a in args if a is not type(None)]
        return _convert(inner, value, path, problems)
    if origin is typing.Literal:
        if value not in args:
            problems.append(f"{path}: {value!r} is not one of {', '.join(map(str, args))}")
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(value):
            problems.append(f"{path}: expected {len(kinds)} values, got {value!r}")
            return value
        return tuple(_convert(k, v, f"{path}[{i}]", problems) for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(hint, type) or not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        problems.append(f"{path}: expected {getattr(hint, '__name__', hint)}, got {value!r}")
    return value
