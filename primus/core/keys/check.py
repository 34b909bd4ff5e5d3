"""Holds flat parameters against their rows: `check_params` types every value and collects everything that is wrong at once.

A key that is reported as a problem is left out of the typed values, so that later rules do not report it again.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from primus.core.experiment import FILE_WORDS, Value, first, nearest
from primus.core.experiment.scalars import read_scalar
from primus.core.keys.key import Key
from primus.core.keys.types import NotOfType, parse_type

__all__ = ["check_params", "check_values", "show_value", "unknown_key_hint"]


@dataclass(frozen=True, slots=True)
class Checked:
    """The values that have their row's type, and what is wrong with the others."""

    typed: dict[str, Value] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def check_params(
    keys: Mapping[str, Key], params: Mapping[str, Value], defaults: Mapping[str, Value]
) -> tuple[dict[str, Value], list[str], list[str]]:
    """Return typed values, problems, and warnings; `defaults` are the values of the presets without the experiment.

    A preset of a family may change what has no effect. What is not built stops a run even if the preset asks for it: a pending
    key's default is that of the presets' common root.
    """
    checked = check_values(keys, params)
    warnings: list[str] = []
    missing = [name for name, key in keys.items() if name not in params and key.status != "removed"]
    if missing:
        checked.problems.append(_missing(missing))
    for name in list(checked.typed):
        key, value, default = keys[name], checked.typed[name], defaults.get(name)
        if default is not None and key.status == "pending":
            default = first(default)
        if key.status == "live" or _is_default(key, value.value, default) or _asks_for_nothing(key, value.value, default):
            continue
        if key.status == "inert":
            warnings.append(f"{_where(name, value)} has no effect: {key.reason}.")
        else:
            checked.problems.append(_refusal(key, value, default))
            del checked.typed[name]
    return checked.typed, checked.problems, warnings


def check_values(keys: Mapping[str, Key], params: Mapping[str, Value]) -> Checked:
    """Type every value; unknown keys, wrong types, choices and ranges are problems, whatever the status of the key."""
    checked = Checked()
    for name, value in params.items():
        key = keys.get(name)
        if key is None:
            checked.problems.append(_unknown(name, value, keys))
            continue
        try:
            typed = replace(value, value=parse_type(key.type).convert(value.value))
        except NotOfType:
            checked.problems.append(f"{_where(name, value)} must be {_allowed(key, value.value)}")
            continue
        fault = _range_fault(key, typed.value)
        if _is_no_choice(key, typed.value):
            checked.problems.append(f"{_where(name, value)} must be {_allowed(key, value.value)}")
        elif fault:
            checked.problems.append(f"{_where(name, value)} must be {fault}.")
        else:
            checked.typed[name] = typed
    return checked


def show_value(value: Any) -> str:
    """Return a value as one would write it in YAML; text that could be read as something else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(show_value(each) for each in value)}]"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(value))
    if isinstance(value, str):
        return value if value and read_scalar(value) == value else f'"{value}"'
    return str(value)


def _where(name: str, value: Value) -> str:
    return f"{name} {show_value(value.value)} ({value.source})"


def unknown_key_hint(name: str, keys: Mapping[str, Key]) -> str:
    """Return what somebody who wrote `name` may have meant, or where all keys stand."""
    if name in FILE_WORDS:
        return f"{name} stands at the top of an experiment file, beside modules."
    close = [key.name for key in keys.values() if name in key.aka] or nearest(name, keys)
    return f"Did you mean {' or '.join(close)}?" if close else "`primus config docs` lists all keys."


def _unknown(name: str, value: Value, keys: Mapping[str, Key]) -> str:
    return f"{_where(name, value)} is not a known key. {unknown_key_hint(name, keys)}"


def _missing(names: list[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"the presets give no value for {shown}: a module preset of your own should extend primus/configs/modules/megatron/"
        "pre_trainer.yaml, and a model preset primus/configs/models/megatron/language_model.yaml."
    )


def _refusal(key: Key, value: Value, default: Value | None) -> str:
    if key.status == "removed":
        return f"{key.reason} ({_where(key.name, value)})"
    allowed = f"; only its default {show_value(default.value)} ({default.source}) can be used" if default else ""
    return f"{key.name} is not implemented yet: it is {show_value(value.value)} ({value.source}){allowed}. {key.reason}."


def _allowed(key: Key, value: Any) -> str:
    """Return what would be right instead of `value`, to the end of the message."""
    spec = parse_type(key.type)
    if isinstance(value, float) and not math.isfinite(value) and "float" in spec.members:
        return "a finite number."
    if not key.choices:
        return f"{spec}."
    words = [show_value(choice) for choice in key.choices] + ["null"] * spec.is_nullable
    close = nearest(str(value), [str(choice) for choice in key.choices])
    return f"one of {', '.join(words)}.{f' Did you mean {close[0]}?' if close else ''}"


def _is_no_choice(key: Key, value: Any) -> bool:
    if not key.choices or value is None:
        return False
    return any(each not in key.choices for each in _each(value))


def _range_fault(key: Key, value: Any) -> str | None:
    """Return the range in words if a number lies outside."""
    numbers = [each for each in _each(value) if isinstance(each, (int, float)) and not isinstance(each, bool)]
    if any(isinstance(number, int) and number.bit_length() > 63 for number in numbers):
        return "an integer of at most 63 bits"
    return None if all(map(key.holds, numbers)) else " and ".join(key.bounds)


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else [value]


def _is_default(key: Key, value: Any, default: Value | None) -> bool:
    """Tell whether `value` is what the presets say; a key that no preset sets may only be null, or absent if it was removed."""
    if default is None:
        return value is None and key.status != "removed"
    try:
        expected = parse_type(key.type).convert(default.value)
    except NotOfType:
        expected = default.value
    return bool(value == expected) and isinstance(value, bool) == isinstance(expected, bool)


def _asks_for_nothing(key: Key, value: Any, default: Value | None) -> bool:
    """Tell whether a switch that is not built, and that the presets leave open, is off."""
    return key.status == "pending" and value is False and default is not None and default.value is None
