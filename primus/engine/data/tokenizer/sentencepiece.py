"""SentencePiece models (`.model` files). No torch."""

from collections.abc import Sequence
from pathlib import Path

from primus.errors import InputError

__all__ = ["SentencePieceTokenizer"]


class SentencePieceTokenizer:
    """A SentencePiece model; its end-of-sentence piece ends documents."""

    def __init__(self, model: str) -> None:
        from sentencepiece import SentencePieceProcessor

        if not Path(model).is_file():
            raise InputError(f"tokenizer_model {model} does not exist; a SentencePiece tokenizer needs its .model file")
        try:
            self._model = SentencePieceProcessor(model_file=model)
        except RuntimeError as error:
            raise InputError(f"tokenizer_model {model} is not a SentencePiece model: {error}") from error
        if self._model.eos_id() < 0:
            raise InputError(f"tokenizer_model {model} has no end-of-sentence piece, which ends documents")

    @property
    def vocab_size(self) -> int:
        return int(self._model.get_piece_size())

    @property
    def eod(self) -> int:
        return int(self._model.eos_id())

    def tokenize(self, text: str) -> list[int]:
        return list(self._model.encode(text))

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self._model.encode(list(texts))]

    def detokenize(self, ids: Sequence[int]) -> str:
        return str(self._model.decode(list(ids)))
