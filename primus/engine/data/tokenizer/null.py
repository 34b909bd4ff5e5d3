"""`NullTokenizer`: text is integers between blanks; for data that is ids already, and for tests. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NullTokenizer"]


@dataclass(frozen=True, slots=True)
class NullTokenizer:
    """`num_ids` ids of text, then the end-of-document token (Megatron-Core 0.16's rule)."""

    num_ids: int

    @property
    def vocab_size(self) -> int:
        return self.num_ids + 1

    @property
    def eod(self) -> int:
        return self.num_ids

    def tokenize(self, text: str) -> list[int]:
        """Return the integers; ValueError for a word that is no id of text."""
        ids = [int(word) for word in text.split()]
        if ids and not 0 <= min(ids) <= max(ids) < self.num_ids:
            raise ValueError(f"ids reach from {min(ids)} to {max(ids)}, the vocabulary from 0 to {self.num_ids - 1}")
        return ids

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.tokenize(text) for text in texts]

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))
