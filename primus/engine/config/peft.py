"""Adapters: which linears get one, of what kind and size; what is not an adapter is frozen then."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PEFTConfig"]

InitMethod = Literal["xavier", "normal", "kaiming", "zero"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PEFTConfig:
    """LoRA (arXiv 2106.09685), canonical LoRA, or DoRA (arXiv 2402.09353): W x + alpha/dim B A x beside a frozen W."""

    scheme: Literal["lora", "canonical_lora", "dora"] = "lora"
    """`canonical_lora` has an adapter for each of q, k, v, gate and up, which share one linear here."""
    target_modules: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    """Linears by their last name, or by their whole name with `*` for any part of it; empty: all that are not excluded."""
    exclude_modules: tuple[str, ...] = ()
    """Linears to leave out where `target_modules` is empty."""
    dim: int = 32
    """Rank of the adapters."""
    alpha: float = 32.0
    """B A is multiplied by alpha / dim."""
    dropout: float = 0.0
    """Share of values that are dropped in training."""
    dropout_position: Literal["pre", "post"] = "pre"
    """Before A or behind B."""
    lora_A_init_method: InitMethod = "xavier"  # noqa: N815 - the field's name
    """First values of A, drawn for the whole matrix whatever the layout."""
    lora_B_init_method: InitMethod = "zero"  # noqa: N815
    """First values of B."""
