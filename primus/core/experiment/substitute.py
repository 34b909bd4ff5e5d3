"""`${VAR}` (must be set) and `${VAR:default}` in the text of a value.

A text that is one substitution and nothing else is read again as a scalar: `${N:8}` is the integer 8. A default may hold
substitutions of its own. Substitution itself never fails: what is wrong is appended to `problems` with its place.
"""

import re
from collections.abc import Mapping

from primus.core.experiment.scalars import read_scalar
from primus.core.experiment.value import Value

__all__ = ["substituted"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def substituted(text: str, source: str, env: Mapping[str, str], problems: list[str]) -> Value:
    """Return `text` with its substitutions made; the source is the variable's if the whole text came from one."""
    end = _end(text, 0) if text.startswith("${") else None
    if end == len(text):
        replacement, origin = _one(text[2:-1], source, env, problems)
        return Value(read_scalar(replacement), origin)
    return Value(_expanded(text, source, env, problems), source)


def _expanded(text: str, source: str, env: Mapping[str, str], problems: list[str]) -> str:
    pieces: list[str] = []
    position = 0
    while (start := text.find("${", position)) >= 0:
        end = _end(text, start)
        if end is None:
            problems.append(f"{source}: {text!r} opens a substitution with ${{ that no }} closes")
            break
        replacement, _ = _one(text[start + 2 : end - 1], source, env, problems)
        pieces += [text[position:start], replacement]
        position = end
    return "".join([*pieces, text[position:]])


def _one(inner: str, source: str, env: Mapping[str, str], problems: list[str]) -> tuple[str, str]:
    """Return the replacement of `${inner}` and where it comes from."""
    name, colon, default = inner.partition(":")
    if not _NAME.fullmatch(name):
        problems.append(f"{source}: ${{{inner}}} is not a substitution; write ${{NAME}} or ${{NAME:default}}")
        return "", source
    if name in env:
        return env[name], f"env {name}"
    if not colon:
        problems.append(f"{source}: the environment variable {name} is not set; export it, or write ${{{name}:default}}")
        return "", source
    if default.startswith("${") and _end(default, 0) == len(default):
        return _one(default[2:-1], source, env, problems)
    return _expanded(default, source, env, problems), source


def _end(text: str, start: int) -> int | None:
    """Return the position behind the brace that closes the substitution at `start`."""
    depth = 0
    position = start
    while position < len(text):
        if text.startswith("${", position):
            depth, position = depth + 1, position + 2
        elif text[position] == "}":
            depth, position = depth - 1, position + 1
            if depth == 0:
                return position
        else:
            position += 1
    return None
