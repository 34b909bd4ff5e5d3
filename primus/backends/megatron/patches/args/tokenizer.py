"""Which tokenizer turns text into tokens, and the files each kind needs."""

from collections.abc import Iterator
from pathlib import Path

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule, or_list
from primus.engine.config.data import DEFAULT_TIK_VOCABULARY

__all__ = ["DERIVATIONS", "NEEDS", "RULES", "SIZED", "embedding_rows", "tokenizer_model"]

NEEDS = {
    "GPT2BPETokenizer": ("vocab_file", "merge_file"),
    "BertWordPieceLowerCase": ("vocab_file",),
    "BertWordPieceCase": ("vocab_file",),
    "NullTokenizer": ("vocab_size",),
}
"""Keys without which a kind cannot start; every other kind needs `tokenizer_model`."""
SIZED = ("NullTokenizer", "TikTokenizer")
"""Kinds whose vocabulary has the size that the user gives."""
_USUAL = ("HuggingFaceTokenizer", "SentencePieceTokenizer", "GPT2BPETokenizer", "TikTokenizer", "NullTokenizer")


def tokenizer_model(p: Params) -> str | None:
    """Return the model file or folder made absolute if it is there, otherwise the name as given: a hub id."""
    given: str | None = p["tokenizer_model"]
    if given is None or p["tokenizer_type"] == "NullTokenizer":
        return None
    path = p.input_path(given)
    return path if Path(path).exists() else given


def embedding_rows(p: Params) -> int | None:
    """Return the model's vocabulary where it may be larger than the tokenizer's; None for as many rows as ids."""
    return None if p["tokenizer_type"] in (None, *SIZED) else p["vocab_size"]


def tiktoken_has_a_size(p: Params) -> Iterator[Rewrite]:
    """A TikTokenizer without `vocab_size` has the usual one."""
    if p["tokenizer_type"] == "TikTokenizer" and p["vocab_size"] is None:
        notice = f"vocab_size is {DEFAULT_TIK_VOCABULARY}, the default of a TikTokenizer: set vocab_size for another one."
        yield Rewrite(key="vocab_size", value=DEFAULT_TIK_VOCABULARY, reason="tokenizer_type is TikTokenizer", notice=notice)


def tokenizer_is_chosen(p: Params) -> Problems:
    """The model's vocabulary is the tokenizer's."""
    kind = p["tokenizer_type"]
    if kind is None:
        if not p["mock_data"]:
            yield (
                f"tokenizer_type is null ({p.source('tokenizer_type')}): set {or_list(_USUAL)}, "
                "or mock_data: true for synthetic documents."
            )
        return
    for key in NEEDS.get(kind, ("tokenizer_model",)):
        if not p[key]:
            yield f"{p.where('tokenizer_type')} needs {key}: set it."


def vocabulary_is_possible(p: Params) -> Problems:
    """A vocabulary has room for its special tokens."""
    size, special = p["vocab_size"], p["tiktoken_num_special_tokens"]
    if p["tokenizer_type"] != "TikTokenizer" or size is None:
        return
    if special >= size:
        yield f"{p.where('tiktoken_num_special_tokens')} must be smaller than {p.where('vocab_size')}."


DERIVATIONS: tuple[Derivation, ...] = (tiktoken_has_a_size,)
RULES: tuple[Rule, ...] = (tokenizer_is_chosen, vocabulary_is_possible)
