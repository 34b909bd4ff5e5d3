"""`Tokenizer`: what the rest of Primus knows of a tokenizer. No torch."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""

    @property
    def eod(self) -> int:
        """Id that ends a document."""

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of a text, without an end-of-document token."""

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of several texts; the fast way."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
