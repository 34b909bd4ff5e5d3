"""`FastTokenizer`: a tokenizer of the `tokenizers` library, which needs neither torch nor transformers."""

from collections.abc import Sequence
from typing import Any

__all__ = ["FastTokenizer"]


class FastTokenizer:
    """Wraps a `tokenizers.Tokenizer` with a known end-of-document id; never cuts or pads a text."""

    def __init__(self, tokenizer: Any, eod: int) -> None:
        self._tokenizer, self._eod = tokenizer, eod
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def eod(self) -> int:
        return self._eod

    def tokenize(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
