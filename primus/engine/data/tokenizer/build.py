"""`build_tokenizer`: one table from `tokenizer_type` to what opens it. No torch."""

from primus.engine.config import TokenizerConfig
from primus.engine.config.data import DEFAULT_TIK_VOCABULARY
from primus.engine.data.tokenizer.base import Tokenizer
from primus.engine.data.tokenizer.huggingface import open_huggingface
from primus.engine.data.tokenizer.null import NullTokenizer
from primus.engine.data.tokenizer.sentencepiece import SentencePieceTokenizer
from primus.engine.data.tokenizer.tables import TikTokenizer, open_gpt2_bpe, open_word_piece
from primus.errors import InputError

__all__ = ["build_tokenizer"]

_HUGGING_FACE = {
    "HuggingFaceTokenizer",
    *(f"{name}Tokenizer" for name in ("Llama2", "Llama3", "Llama4", "Mixtral", "DeepSeekV2", "DeepSeekV3", "DeepSeekV4")),
    *(f"{name}Tokenizer" for name in ("KimiK2", "Lfm2")),
}
_SENTENCE_PIECE = {"SentencePieceTokenizer", "GPTSentencePieceTokenizer"}
_OTHERS = {"NullTokenizer", "TikTokenizer", "GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase"}


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Open the tokenizer; InputError says which file or name is wrong."""
    try:
        return _open(config)
    except OSError as error:
        raise InputError(f"tokenizer_type {config.type}: {error.filename} cannot be read: {error.strerror}") from error


def _open(config: TokenizerConfig) -> Tokenizer:
    kind = config.type
    if kind == "NullTokenizer":
        if config.vocab_size is None:
            raise InputError(
                "tokenizer_type NullTokenizer needs vocab_size, the number of ids before its end-of-document token"
            )
        if config.vocab_size < 1:
            raise InputError(f"vocab_size is {config.vocab_size}; tokenizer_type NullTokenizer needs at least one id")
        return NullTokenizer(config.vocab_size)
    if kind == "GPT2BPETokenizer":
        return open_gpt2_bpe(_given(config, "vocab_file"), _given(config, "merge_file"))
    if kind in ("BertWordPieceLowerCase", "BertWordPieceCase"):
        lower = kind == "BertWordPieceLowerCase"
        return open_word_piece(_given(config, "vocab_file"), lower_case=lower, extra_ids=config.vocab_extra_ids)
    if kind not in _HUGGING_FACE | _SENTENCE_PIECE | _OTHERS:
        known = ", ".join(sorted(_HUGGING_FACE | _SENTENCE_PIECE | _OTHERS))
        raise InputError(f"tokenizer_type {kind} is unknown; known are {known}")
    if config.model is None:
        raise InputError(f"tokenizer_type {kind} needs tokenizer_model: a folder, a hub id or a file")
    if kind in _HUGGING_FACE:
        return open_huggingface(config.model, trust_remote_code=config.trust_remote_code)
    if kind in _SENTENCE_PIECE:
        return SentencePieceTokenizer(config.model)
    return TikTokenizer(
        config.model,
        vocab_size=config.vocab_size or DEFAULT_TIK_VOCABULARY,
        pattern=config.tiktoken_pattern,
        num_special_tokens=config.tiktoken_num_special_tokens,
        special_tokens=config.tiktoken_special_tokens,
    )


def _given(config: TokenizerConfig, key: str) -> str:
    value: str | None = getattr(config, key)
    if value is None:
        raise InputError(f"tokenizer_type {config.type} needs {key}, a file; set it")
    return value
