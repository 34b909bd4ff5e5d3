"""Suggestions for a word that is not known."""

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["by_nearness", "did_you_mean", "nearest"]


_SHORT = 5
"""Shorter words begin, or are scattered over, too many others."""


def nearest(word: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return up to `count` known words that look like `word`, the most similar first.

    Words that go on where it ends come first, then those that it shortens (`HFTokenizer`), then those with similar letters.
    """
    names = list(known)
    if len(word) >= _SHORT:
        for is_longer in (str.startswith, _is_spelt_out):
            if found := sorted((name for name in names if is_longer(name, word)), key=len):
                return found[:count]
    return difflib.get_close_matches(word, names, n=count, cutoff=0.6)


def _is_spelt_out(name: str, word: str) -> bool:
    """Tell whether `word` is `name` with letters left out, but for the first."""
    letters = iter(name)
    return name[:1] == word[:1] and len(name) < 2 * len(word) and all(letter in letters for letter in word)


def by_nearness(word: str, known: Iterable[str]) -> list[str]:
    """Return all known words, the most similar first, equals by name."""
    return sorted(known, key=lambda name: (-difflib.SequenceMatcher(None, word, name).ratio(), name))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a sentence that proposes the nearest words, or lists the known ones if none is near."""
    close = nearest(word, known)
    return f"Did you mean {' or '.join(close)}?" if close else f"Known are {', '.join(known)}."
