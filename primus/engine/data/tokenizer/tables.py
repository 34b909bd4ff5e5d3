"""Tokenizers from plain tables: GPT-2's byte-level BPE, BERT's WordPiece, and Tik (ranked byte strings). No torch."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path

from primus.engine.data.tokenizer.fast import FastTokenizer
from primus.errors import InputError

__all__ = ["TikTokenizer", "open_gpt2_bpe", "open_word_piece"]

_TIK_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "v2": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
_TIK_SPECIALS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")


def open_gpt2_bpe(vocab_file: str, merge_file: str) -> FastTokenizer:
    """Open GPT-2's byte-level BPE from `vocab_file` (JSON) and `merge_file`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = _existing("vocab_file", vocab_file), _existing("merge_file", merge_file)
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:
        raise InputError(f"vocab_file {vocab} and merge_file {merges} are no BPE tables: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = tokenizer.token_to_id("<|endoftext|>")
    if end is None:
        raise InputError(f"vocab_file {vocab} has no <|endoftext|>, which ends documents")
    return FastTokenizer(tokenizer, int(end))


def open_word_piece(vocab_file: str, *, lower_case: bool, extra_ids: int) -> FastTokenizer:
    """Open BERT's WordPiece from `vocab_file`; documents end with [SEP]; sentinels `<extra_id_i>` are appended."""
    from tokenizers import AddedToken, BertWordPieceTokenizer

    vocab = _existing("vocab_file", vocab_file)
    needs = f"vocab_file {vocab} is no WordPiece vocabulary (a piece a line, among them [UNK], [CLS] and [SEP])"
    try:
        tokenizer = BertWordPieceTokenizer(str(vocab), lowercase=lower_case)._tokenizer
    except Exception as error:
        raise InputError(f"{needs}: {error}") from error
    if tokenizer.token_to_id("[UNK]") is None:
        raise InputError(f"{needs}: [UNK], which stands for what it does not know, is not in it")
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>", special=True) for i in range(extra_ids)])
    return FastTokenizer(tokenizer, int(tokenizer.token_to_id("[SEP]")))


class TikTokenizer:
    """Ranked byte strings (a JSON list of rank, token_bytes, token_str); the special tokens have the first ids."""

    def __init__(
        self, model: str, *, vocab_size: int, pattern: str | None, num_special_tokens: int, special_tokens: Sequence[str] | None
    ) -> None:
        import tiktoken

        file = _existing("tokenizer_model", model)
        specials = _specials(special_tokens or _TIK_SPECIALS, num_special_tokens, vocab_size)
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))[: vocab_size - num_special_tokens]
            ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"tokenizer_model {file} is not a list of rank, token_bytes and token_str: {error!r}") from error
        self._shift, self._specials, self._size = num_special_tokens, specials, vocab_size
        self._encoding = tiktoken.Encoding(
            name=file.stem, pat_str=_TIK_PATTERNS[pattern or "v2"], mergeable_ranks=ranks, special_tokens={}
        )

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def eod(self) -> int:
        return self._specials.index("</s>")

    def tokenize(self, text: str) -> list[int]:
        return [rank + self._shift for rank in self._encoding.encode_ordinary(text)]

    def tokenize_many(self, texts: Sequence[str]) -> list[list[int]]:
        return [[rank + self._shift for rank in ranks] for ranks in self._encoding.encode_ordinary_batch(list(texts))]

    def detokenize(self, ids: Sequence[int]) -> str:
        parts = [
            self._specials[i].encode() if i < self._shift else self._encoding.decode_single_token_bytes(i - self._shift)
            for i in ids
        ]
        return b"".join(parts).decode("utf-8", errors="replace")


def _specials(names: Sequence[str], count: int, vocab_size: int) -> list[str]:
    missing = [name for name in _TIK_SPECIALS if name not in names]
    if missing or len(set(names)) != len(names):
        raise InputError(f"tiktoken_special_tokens must be unique and contain {', '.join(_TIK_SPECIALS)}; missing: {missing}")
    if not len(names) <= count < vocab_size:
        raise InputError(
            f"tiktoken_num_special_tokens is {count}; it must be at least the {len(names)} special tokens and less than "
            f"vocab_size {vocab_size}"
        )
    return [*names, *(f"<SPECIAL_{i}>" for i in range(len(names), count))]


def _existing(key: str, file: str) -> Path:
    if not Path(file).is_file():
        raise InputError(f"{key} {file}: no such file")
    return Path(file)
