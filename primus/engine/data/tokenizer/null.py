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
        return [int(word) for word in text.split()]

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.tokenize(text) for text in texts]

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))
