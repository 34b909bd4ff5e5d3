"""Data of pretraining and of fine-tuning, and the tokenizer."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["FinetuningDatasetConfig", "GPTDatasetConfig", "HFDatasetConfig", "PackedSequenceSpecs", "TokenizerConfig"]


@dataclass(kw_only=True)
class GPTDatasetConfig:
    """Indexed files; data that is made up where none of the four words for them is given."""

    seq_length: int | None = None
    random_seed: int = 1234
    blend: list[str] | None = None
    """Prefixes of indexed files, each behind its weight if they have weights."""
    blend_per_split: list[list[str] | None] | None = None
    """Such a list, or None, for each of training, validation and test."""
    data_args_path: str | None = None
    """File that holds the blend."""
    per_split_data_args_path: str | None = None
    """JSON file that holds the blends of the three."""
    split: str | None = None
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False
    create_attention_mask: bool = False
    num_dataset_builder_threads: int = 1
    path_to_cache: str | None = None
    mmap_bin_files: bool = True
    data_sharding: bool = True
    dataloader_type: str = "single"
    num_workers: int = 8
    persistent_workers: bool = False
    skip_getting_attention_mask_from_dataset: bool = True


@dataclass(kw_only=True)
class PackedSequenceSpecs:
    """Several samples in one sequence."""

    packed_sequence_size: int = -1
    """Tokens of a sequence; none are packed below 1."""
    tokenizer_model_name: str | None = None
    """Folder of tokenised rows among those of other tokenizers; None: the tokenizer's own name."""
    packed_train_data_path: str | None = None
    """Samples that were packed before: a file, a folder or a pattern of files."""
    packed_val_data_path: str | None = None
    packed_metadata_path: str | None = None
    """What was said of them when they were packed."""
    pad_cu_seqlens: bool = False
    pad_seq_to_mult: int = 1
    """Samples are filled up to a multiple before they are packed."""
    max_single_sequence_length: int | None = None
    """Tokens of a sample, at most; None: those of a sequence."""
    num_tokenizer_workers: int = -1
    """Processes that tokenise rows; -1: one a core."""


@dataclass(kw_only=True)
class FinetuningDatasetConfig:
    """A folder with `training.jsonl`, `validation.jsonl` and `test.jsonl`."""

    dataset_root: str | None = None
    seq_length: int | None = None
    seed: int = 1234
    memmap_workers: int = 1
    max_train_samples: int | None = None
    packed_sequence_specs: PackedSequenceSpecs | None = None
    dataset_kwargs: dict[str, Any] | None = None
    do_validation: bool = True
    do_test: bool = True
    dataloader_type: str | None = "batch"
    num_workers: int = 8
    data_sharding: bool = True
    persistent_workers: bool = False


@dataclass(kw_only=True)
class HFDatasetConfig(FinetuningDatasetConfig):
    """A data set on the hub, in its local cache, or on disk; `dataset_name` is a preset, a name or a path."""

    dataset_name: str | None = None
    dataset_subset: str | None = None
    dataset_dict: Any = None
    split: str | None = None
    download_mode: str | None = None
    val_proportion: float | None = 0.05
    split_val_from_train: bool = True
    delete_raw: bool = False
    rewrite: bool = True
    hf_kwargs: dict[str, Any] | None = None


@dataclass(kw_only=True)
class TokenizerConfig:
    """The tokenizer."""

    tokenizer_type: str | None = None
    tokenizer_model: str | None = None
    vocab_size: int | None = None
    vocab_file: str | None = None
    merge_file: str | None = None
    vocab_extra_ids: int = 0
    special_tokens: list[str] | None = None
    tiktoken_pattern: str | None = None
    tiktoken_num_special_tokens: int = 1000
    tiktoken_special_tokens: list[str] | None = None
    hf_tokenizer_kwargs: dict[str, Any] = field(default_factory=dict)
    sp_tokenizer_kwargs: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    metadata_path: str | None = None
    legacy_tokenizer: bool = False
