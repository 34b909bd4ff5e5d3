"""Fine-tuning data: rows with a prompt and an answer or with chat messages, and what a sample is made of them."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PackingConfig", "SFTConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackingConfig:
    """Several samples in one sequence, which do not see one another."""

    size: int
    """Tokens of a sequence."""
    algorithm: Literal["first_fit_shuffle", "first_fit_decreasing"] = "first_fit_shuffle"
    """Order in which samples look for room."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SFTConfig:
    """Rows, their template, masks and lengths."""

    train: str
    """Absolute file or folder of rows, or a name on the hub that is in the local cache."""
    packing: PackingConfig | None = None
    """None: a sample a sequence."""
