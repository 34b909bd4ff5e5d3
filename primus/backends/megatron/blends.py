"""The grammar of data blends, and the files that may hold them.

A blend is a list of prefixes, or of weight-prefix pairs; a string is split at blanks. An odd number of words is a list of
prefixes; in an even number, if every other word is a number, these are weights. Everything here raises `BlendError`, whose text
says what is wrong and fits behind the key that gave the blend.
"""

import json
import math
from pathlib import Path
from typing import Any

from primus.engine.config.split import SPLITS

__all__ = ["BlendError", "is_number", "parse_blend", "read_split_lists", "read_words"]


class BlendError(ValueError):
    """A blend or a file with blends cannot be used."""


def parse_blend(words: Any) -> tuple[list[str], tuple[float, ...] | None]:
    """Return the prefixes of a blend and their weights, None if it has none."""
    listed = words.split() if isinstance(words, str) else words
    if not isinstance(listed, (list, tuple)):
        raise BlendError(f"a blend is a list or a string of prefixes, not {type(words).__name__}")
    tokens = [str(word).strip() for word in listed]
    if not tokens or not all(tokens):
        raise BlendError("a prefix is empty")
    numbers = [_number(token) for token in tokens[::2]]
    weights = tuple(number for number in numbers if number is not None)
    if len(tokens) % 2 or not weights:
        return tokens, None
    if len(weights) < len(numbers):
        odd = tokens[2 * numbers.index(None)]
        raise BlendError(f"either every prefix has a weight before it or none has; {odd} stands where a weight is expected")
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or sum(weights) == 0:
        raise BlendError("weights must not be negative, and not all of them 0")
    return tokens[1::2], weights


def read_words(path: str) -> str:
    """Return the text of a file that holds one blend."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BlendError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BlendError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}") from error


def read_split_lists(path: str) -> dict[str, Any]:
    """Return the blends of train, valid and test from a JSON file; each may be null."""
    try:
        lists = json.loads(read_words(path))
    except json.JSONDecodeError as error:
        raise BlendError(f"{path} is not JSON: {error}") from error
    if not isinstance(lists, dict) or set(lists) != set(SPLITS):
        raise BlendError(f"{path} must be a JSON object with the keys train, valid and test, each a blend or null")
    return lists


def is_number(token: str) -> bool:
    """Tell whether a word of a blend can be a weight."""
    return _number(token) is not None


def _number(token: str) -> float | None:
    try:
        return float(token)
    except ValueError:
        return None
