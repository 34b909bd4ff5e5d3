"""Where tokens come from and how text becomes tokens."""

from dataclasses import dataclass
from typing import Literal

from primus.engine.config.sft import SFTConfig

__all__ = ["DEFAULT_TIK_VOCABULARY", "Blend", "DatasetConfig", "TokenizerConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """Indexed datasets by prefix, with weights or without."""

    prefixes: tuple[str, ...]
    """Paths without `.bin`/`.idx`."""
    weights: tuple[float, ...] | None = None
    """One weight a prefix; None: every prefix once, by its size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetConfig:
    """Sources, sampling and the loader."""

    mock_data: bool = False
    """Synthetic documents instead of files."""
    blend: Blend | None = None
    """One source divided by `split`."""
    train_blend: Blend | None = None
    """Training source of its own."""
    valid_blend: Blend | None = None
    """Validation source of its own."""
    test_blend: Blend | None = None
    """Test source of its own."""
    split: str | None = None
    """Train, validation and test shares of `blend`, such as `99,1,0`."""
    cache_path: str | None = None
    """Folder of the index cache; None: `<prefix>/cache/GPTDataset_indices`."""
    dataloader_type: Literal["single", "cyclic"] = "single"
    """`single`: in order; `cyclic`: a new permutation each epoch, without end."""
    data_sharding: bool = True
    """`cyclic` only: each data-parallel rank owns a contiguous part."""
    num_workers: int = 0
    """Loader processes a rank."""
    reset_position_ids: bool = False
    """Positions restart after an end-of-document token."""
    reset_attention_mask: bool = False
    """Tokens do not attend across an end-of-document token."""
    eod_mask_loss: bool = False
    """No loss where the input token is end-of-document."""
    create_attention_mask_in_dataloader: bool = False
    """Batches carry an explicit boolean mask."""
    mmap_bin_files: bool = True
    """Memory-map the token files instead of reading each item."""
    num_dataset_builder_threads: int = 1
    """Threads that build the indices of a blend."""
    sft: SFTConfig | None = None
    """Rows to fine-tune on, instead of documents."""


DEFAULT_TIK_VOCABULARY = 131_072
"""Ids of a TikTokenizer whose `vocab_size` is null."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerConfig:
    """The tokenizer; its vocabulary is the model's."""

    type: str
    """Name such as `HuggingFaceTokenizer` or `NullTokenizer`."""
    model: str | None = None
    """Folder, hub id or file."""
    vocab_size: int | None = None
    """Null and Tik tokenizers only. A NullTokenizer has one id more, its end-of-document token."""
    vocab_file: str | None = None
    """BPE or WordPiece table."""
    merge_file: str | None = None
    """BPE merges."""
    vocab_extra_ids: int = 0
    """Sentinels appended to a WordPiece vocabulary."""
    tiktoken_pattern: Literal["v1", "v2"] | None = None
    """Split expression; None: v2."""
    tiktoken_num_special_tokens: int = 1000
    """Special ids, which come first."""
    tiktoken_special_tokens: tuple[str, ...] | None = None
    """Names of the special tokens; None: the standard list."""
    trust_remote_code: bool = False
    """Let a hub tokenizer run its own code."""
