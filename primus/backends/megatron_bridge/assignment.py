"""Setting one field of a raw container by its dotted path: `assign` is the name to use.

A value is read as the type that the field declares: an integer for a number, a number that is written as text, a map for a
sub-config. Null clears a field that may be empty and leaves any other as it is.
"""

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.container import PEFT, CanonicalLoRA, DoRA, LoRA
from primus.core.experiment import nearest
from primus.core.keys import parse_type, show_value
from primus.core.keys.types import NotOfType

__all__ = ["SCHEMES", "Fault", "assign", "field_names", "must_be_there", "sub_configs_of"]

SCHEMES: Mapping[str, type[PEFT]] = {"lora": LoRA, "dora": DoRA, "canonical_lora": CanonicalLoRA}
"""Adapters by the word for them."""

_DTYPES = {
    "bf16": ("bfloat16", "torch.bfloat16"),
    "fp16": ("half", "float16", "torch.half", "torch.float16"),
    "fp32": ("float", "float32", "torch.float", "torch.float32"),
    "fp64": ("double", "float64", "torch.double", "torch.float64"),
}
_DTYPE_OF = {spelling: name for name, spellings in _DTYPES.items() for spelling in spellings}


class Fault(Exception):  # noqa: N818 - it becomes a part of the user's message
    """Why a value cannot be set; to the end of the message, behind the field and its value."""


def assign(config: Any, path: Sequence[str], value: Any) -> bool:
    """Set the field at `path` below a dataclass, making sub-configs on the way; tell whether anything was set.

    A map is laid over the sub-config or the map that is there. Fault if there is no such field or the value has another type.
    """
    name, *rest = path
    if (name, *rest) == ("peft", "type"):
        _adopt_scheme(config, value)
        return True
    if name not in field_names(type(config)):
        raise Fault(_no_field(type(config), name))
    hint = _hints(type(config))[name]
    if rest:
        return _below(config, name, hint, rest, value)
    if isinstance(value, Mapping):
        return _laid_over(config, name, hint, value)
    if value is None and not _may_be_none(hint):
        return False
    setattr(config, name, value if value is None else _read(name, hint, value))
    return True


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass."""
    return tuple(each.name for each in fields(kind))


def sub_configs_of(kind: Any, name: str) -> tuple[type, ...]:
    """Return the dataclasses that a field may hold."""
    return _sub_configs(_hints(kind)[name])


def must_be_there(kind: Any, name: str) -> bool:
    """Tell whether a field may not be None."""
    return not _may_be_none(_hints(kind)[name])


def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _below(config: Any, name: str, hint: Any, rest: list[str], value: Any) -> bool:
    """Set a field of a sub-config, or an entry of a map."""
    inner = getattr(config, name)
    if not is_dataclass(inner) and _sub_configs(hint):
        if inner is not None:
            raise Fault(f"cannot be set while {name} is {show_value(inner)}, which says it all")
        inner = _made(hint)
        if assign(inner, rest, value):
            setattr(config, name, inner)
            return True
        return False
    if is_dataclass(inner):
        return assign(inner, rest, value)
    if not _takes_maps(hint):
        raise Fault(f"cannot be set: {name} is {_in_words(hint)}, which has no parts")
    setattr(config, name, _with_entry(inner or {}, rest, value))
    return True


def _laid_over(config: Any, name: str, hint: Any, value: Mapping[str, Any]) -> bool:
    if not _sub_configs(hint):
        if not _takes_maps(hint):
            raise Fault(f"must be {_in_words(hint)}.")
        setattr(config, name, {**(getattr(config, name) or {}), **value})
        return True
    inner = getattr(config, name)
    inner = inner if is_dataclass(inner) else _made(hint)
    for key, each in value.items():
        try:
            assign(inner, (key,), each)
        except Fault as fault:
            raise Fault(f"has {key} {show_value(each)}, which {fault}") from None
    setattr(config, name, inner)
    return True


def _made(hint: Any) -> Any:
    """Return a new sub-config of a field; adapters are LoRA."""
    found = _sub_configs(hint)[0]
    return LoRA() if issubclass(LoRA, found) else found()


def _adopt_scheme(config: Any, kind: Any) -> None:
    """Put adapters of another kind in the place of those that are there."""
    if str(kind) not in SCHEMES:
        raise Fault(f"is not known; there are {', '.join(SCHEMES)}.")
    if type(config.peft) is not SCHEMES[str(kind)]:
        config.peft = SCHEMES[str(kind)]()


def _with_entry(entries: Mapping[str, Any], rest: list[str], value: Any) -> dict[str, Any]:
    """Return a map with a value at a path in it."""
    name, *deeper = rest
    below = entries.get(name)
    inner = _with_entry(below if isinstance(below, Mapping) else {}, deeper, value) if deeper else value
    return {**entries, name: inner}


def _read(name: str, hint: Any, value: Any) -> Any:
    texts = _type_names(hint)
    if not texts:
        if isinstance(value, _sub_configs(hint)):
            return value
        raise Fault(f"must be {_in_words(hint)}.")
    if name.endswith("dtype") and isinstance(value, str):
        return _DTYPE_OF.get(value, value)
    try:
        return parse_type("|".join(texts) + "?" * _may_be_none(hint)).convert(value)
    except NotOfType:
        raise Fault(f"must be {_in_words(hint)}.") from None


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _may_be_none(hint: Any) -> bool:
    return any(each in (type(None), Any) for each in _members(hint))


def _sub_configs(hint: Any) -> tuple[type, ...]:
    return tuple(each for each in _members(hint) if is_dataclass(each) and isinstance(each, type))


def _takes_maps(hint: Any) -> bool:
    return any(each in (Any, dict) or get_origin(each) is dict for each in _members(hint))


def _type_names(hint: Any) -> list[str]:
    """Return the members of a hint in the language of key rows, sub-configs and None left out."""
    names = []
    for each in _members(hint):
        origin = get_origin(each)
        if each is Any:
            names.append("any")
        elif origin is list:
            (item,) = get_args(each)
            names.append(f"list[{item.__name__ if item in (int, float, str) else 'any'}]")
        elif origin is dict or each is dict:
            names.append("dict")
        elif each in (bool, int, float, str):
            names.append(each.__name__)
    return names


def _in_words(hint: Any) -> str:
    texts = _type_names(hint)
    if _sub_configs(hint):
        texts = [*texts, *["dict"] * ("dict" not in texts)]
    return str(parse_type("|".join(texts) + "?" * _may_be_none(hint)))


def _no_field(kind: type, name: str) -> str:
    if name in KEYS:
        return f"is not known: {kind.__name__} has no field {name}; it is a key of its own, outside of the map."
    close = nearest(name, field_names(kind))
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(field_names(kind))}."
    return f"is not known: {kind.__name__} has no field {name}; {hint}"
