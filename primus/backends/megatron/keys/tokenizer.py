"""Rows of section 10.2: how text becomes tokens."""

from primus.backends.megatron.keys.row import inert, live, section

__all__ = ["ROWS"]

_ALIASES = tuple(
    f"{family}Tokenizer"
    for family in ("Llama2", "Llama3", "Llama4", "Mixtral", "DeepSeekV2", "DeepSeekV3", "DeepSeekV4", "KimiK2", "Lfm2")
)
"""Names that mean HuggingFaceTokenizer."""
_KINDS = (
    "HuggingFaceTokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "GPT2BPETokenizer",
    "BertWordPieceLowerCase", "BertWordPieceCase", "TikTokenizer", "NullTokenizer",
)  # fmt: skip

# A table: a row's identity on its first line, its meaning below.
# fmt: off
ROWS = section(
    "10.2",
    live("tokenizer_type", "str?", "tokenizer.type", choices=_KINDS + _ALIASES,
         doc="Kind of tokenizer, such as HuggingFaceTokenizer, GPTSentencePieceTokenizer, GPT2BPETokenizer, TikTokenizer "
             "or NullTokenizer; names such as Llama3Tokenizer mean HuggingFaceTokenizer."),
    live("tokenizer_model", "str?", "tokenizer.model",
         doc="Folder, file or hub id of the tokenizer."),
    live("vocab_size", "int?", "tokenizer.vocab_size, model.vocab_size", minimum=1,
         doc="Vocabulary of Null and Tik tokenizers (131072 with mock data); the others bring their own, and it gives the "
             "model more rows than they have ids."),
    live("vocab_file", "path?", "tokenizer.vocab_file",
         doc="Vocabulary table of a byte-pair or WordPiece tokenizer."),
    live("vocab_extra_ids", "int", "tokenizer.vocab_extra_ids", minimum=0,
         doc="Sentinel tokens `<extra_id_i>` added to a WordPiece vocabulary."),
    live("tiktoken_pattern", "str?", "tokenizer.tiktoken_pattern", choices=("v1", "v2"),
         doc="Expression that cuts text before TikTokenizer's merges. Null: v2."),
    live("tiktoken_num_special_tokens", "int", "tokenizer.tiktoken_num_special_tokens", minimum=0,
         doc="Ids at the start of TikTokenizer's vocabulary that are kept for special tokens."),
    live("tiktoken_special_tokens", "list[str]?", "tokenizer.tiktoken_special_tokens",
         doc="Names of TikTokenizer's special tokens. Null: the usual seven."),
    inert("legacy_tokenizer", "bool", "there is one implementation of each tokenizer",
          doc="Use Megatron's older tokenizer classes."),
    live("trust_remote_code", "bool", "tokenizer.trust_remote_code",
         doc="Let a Hugging Face tokenizer run code from its repository."),
)
