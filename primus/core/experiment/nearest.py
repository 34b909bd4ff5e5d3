"""Suggestions for a word that is not known."""

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["by_nearness", "did_you_mean", "nearest"]


def nearest(word: str, known: Iterable[str], *, count: int = 3) -> list[str]:
    """Return up to `count` known words that look like `word`, the most similar first."""
    return difflib.get_close_matches(word, list(known), n=count, cutoff=0.6)


def by_nearness(word: str, known: Iterable[str]) -> list[str]:
    """Return all known words, the most similar first, equals by name."""
    return sorted(known, key=lambda name: (-difflib.SequenceMatcher(None, word, name).ratio(), name))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a sentence that proposes the nearest words, or lists the known ones if none is near."""
    close = nearest(word, known)
    return f"Did you mean {' or '.join(close)}?" if close else f"Known are {', '.join(known)}."
