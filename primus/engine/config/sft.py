"""Fine-tuning data: rows with a prompt and an answer or with chat messages, and what a sample is made of them."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ChatConfig", "PackingConfig", "PromptConfig", "SFTConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptConfig:
    """How the fields of a row become a prompt and its answer."""

    template: str | None = None
    """Text with `{field}` places, the answer's last; None: what the fields of the rows suggest, else `{input} {output}`."""
    label_key: str = "output"
    """Field of the answer."""
    truncation_fields: tuple[str, ...] | None = None
    """Fields that a sample longer than the sequence loses tokens of, before its answer does; None: all of the prompt."""
    add_bos: bool = False
    """Begin with the tokenizer's bos token."""
    add_eos: bool = True
    """End with the tokenizer's end-of-document token."""
    add_sep: bool = False
    """Put the tokenizer's sep token between prompt and answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatConfig:
    """How the messages of a row become text."""

    template: str | None = None
    """Jinja text in place of the tokenizer's own chat template."""
    tools: str | None = None
    """JSON list of tool schemas that the template gets, unless a row has its own `tools`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """Several samples in one sequence, which do not see one another."""

    size: int
    """Tokens of a sequence."""
    algorithm: Literal["first_fit_shuffle", "first_fit_decreasing"] = "first_fit_shuffle"
    """Order in which samples look for room."""
    pad_multiple: int = 1
    """Samples are padded to a multiple before they are packed; context parallelism makes it a multiple of 2 x its size."""
    max_sample_length: int | None = None
    """Tokens of a sample; None: those of a sequence."""
    train_file: str | None = None
    """Samples that were packed before, which are trained on in place of the rows."""
    validation_file: str | None = None
    """Such samples to validate on."""
    metadata_file: str | None = None
    """What was said of them when they were packed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTConfig:
    """Rows, their template, masks and lengths."""

    train: str
    """Absolute file or folder of rows, the name of a known dataset, or a hub name that is in the local cache."""
    subset: str | None = None
    """Configuration of a hub dataset that has several."""
    do_validation: bool = True
    """Open a validation split."""
    do_test: bool = False
    """Open a test split."""
    val_proportion: float | None = 0.1
    """Share of the training rows set apart where no validation rows exist; None: no validation then."""
    prefer_own_validation: bool = False
    """Use the dataset's own validation split where it has one, instead of setting rows apart."""
    max_train_samples: int | None = None
    """Train on the first so many rows only."""
    seed: int = 1234
    """Of the validation split, the order and the packs."""
    order: Literal["batch", "single", "cyclic"] = "batch"
    """`batch`: a new permutation each epoch, seeded by seed + epoch; `single`: as they stand; `cyclic`: as for documents."""
    chat: bool | None = None
    """Rows are conversations; None: if they have `messages` or `conversations`."""
    prompt_format: PromptConfig = field(default_factory=PromptConfig)
    """Of rows that are no conversations."""
    chat_format: ChatConfig = field(default_factory=ChatConfig)
    """Of rows that are conversations."""
    loss_on: Literal["answers", "last_answer", "all"] = "answers"
    """Which tokens are trained; `last_answer` differs in conversations only."""
    truncation_method: Literal["right", "left", "error"] = "right"
    """Side on which the truncation fields of a long sample lose tokens; `error`: refuse the run."""
    pad_to_max_length: bool = False
    """Every sequence is filled up to seq_length; otherwise to the longest of its microbatch, rounded up to `pad_multiple`."""
    pad_multiple: int = 16
    """Tokens."""
    packing: PackingConfig | None = None
    """None: a sample a sequence."""
    cache: str | None = None
    """Folder of tokenised rows; None: `packed` beside the rows, or in the cache of the hub's data sets for theirs."""
    cache_name: str | None = None
    """Folder in it, in place of the tokenizer's name."""
    workers: int = 0
    """Processes that tokenise rows; 0: one a core."""
