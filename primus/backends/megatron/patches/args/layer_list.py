"""Which layers a key speaks of: a number for a rhythm, or a list of 0 and 1, also as text such as `([0]*3+[1])*12`."""

import ast
import re
from collections.abc import Callable
from typing import Any

__all__ = ["layer_list"]


def layer_list(
    given: int | str | list[int] | None, depth: int, *, rhythm: Callable[[int, int], bool], meaning: str, example: str
) -> list[int] | str:
    """Return 0 or 1 for every layer, or what is wrong.

    `rhythm` tells of a layer's number and the given one whether it is 1; `meaning` says what 0 and 1 are.
    """
    if isinstance(given, str):
        given = int(given) if re.fullmatch(r"\s*\d+\s*", given) else _evaluated(given)
    if given is None:
        return f"use a number, or a list of 0 and 1 such as {example}"
    if isinstance(given, int):
        return "use 1 or more" if given < 1 else [int(rhythm(number, given)) for number in range(depth)]
    if len(given) != depth:
        return f"it speaks of {len(given)} layers and the model has {depth}"
    if any(each not in (0, 1) for each in given):
        return f"each layer is {meaning}"
    return list(given)


def _evaluated(text: str) -> list[int] | None:
    """Return the list that sums and multiples of lists of numbers make; None for any other text."""
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, list) else None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _value(left), _value(right)
            if isinstance(one, list) and isinstance(other, list):
                return one + other
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _value(left), _value(right)
            if isinstance(one, list) and isinstance(other, int) and len(one) * other < 10_000:
                return one * other
            if isinstance(one, int) and isinstance(other, list) and len(other) * one < 10_000:
                return one * other
    raise ValueError
