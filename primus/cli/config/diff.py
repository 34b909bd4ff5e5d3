"""`primus config diff A B`: the parameters in which two experiments differ, with the places where they were set."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from primus.cli.config.resolve import Resolved, resolve
from primus.core.experiment import META, Value
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["diff"]


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="Experiment YAML.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Experiment YAML.", show_default=False)],
) -> None:
    """Show what differs between experiments A and B after all presets."""
    first, second = resolve(a, ()), resolve(b, ())
    lines = list(_differences(first, second))
    typer.echo("\n".join(lines) if lines else "no difference")
    problems = [*first.problems, *second.problems]
    if problems:
        raise ConfigError(dict.fromkeys(problems))


def _differences(first: Resolved, second: Resolved) -> Iterator[str]:
    yield from _compared("", *({name: getattr(each.experiment, name) for name in META} for each in (first, second)))
    for left, right in _pairs(list(first.params), list(second.params)):
        prefix = f"{left or right}."
        yield from _compared(prefix, first.params.get(left, {}), second.params.get(right, {}))


def _pairs(left: list[str], right: list[str]) -> list[tuple[str, str]]:
    """Pair modules by role; two files with one module each are compared whatever the roles are called."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    roles = dict.fromkeys([*left, *right])
    return [(role if role in left else "", role if role in right else "") for role in roles]


def _compared(prefix: str, left: Mapping[str, Value], right: Mapping[str, Value]) -> Iterator[str]:
    for name in dict.fromkeys([*left, *right]):
        ours, theirs = left.get(name), right.get(name)
        if ours != theirs and (ours is None or theirs is None or ours.value != theirs.value):
            yield f"{prefix}{name}"
            yield f"  - {_side(ours)}"
            yield f"  + {_side(theirs)}"


def _side(value: Value | None) -> str:
    return "not set" if value is None else f"{show_value(value.value)}  ({value.source})"
