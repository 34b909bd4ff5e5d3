"""Adapters: a dataclass a scheme."""

from dataclasses import dataclass, field
from typing import Any

from primus.engine.config.peft import DEFAULT_TARGETS

__all__ = ["PEFT", "CanonicalLoRA", "DoRA", "LoRA"]


@dataclass(kw_only=True)
class PEFT:
    """What the schemes share."""

    target_modules: list[str] = field(default_factory=lambda: list(DEFAULT_TARGETS["lora"]))
    exclude_modules: list[str] = field(default_factory=list)
    dim: int = 32
    alpha: float = 32
    dropout: float = 0.0
    dropout_position: str = "pre"
    lora_A_init_method: str = "xavier"  # noqa: N815 - the field's name
    lora_B_init_method: str = "zero"  # noqa: N815
    a2a_experimental: bool = False
    lora_dtype: Any = None
    share_expert_adapters: bool = True
    normalize_moe_lora: bool = False
    experts_shared_outer_loras: bool = False
    sequence_parallel_input_regather: bool = False


@dataclass(kw_only=True)
class LoRA(PEFT):
    """One adapter a linear."""


@dataclass(kw_only=True)
class DoRA(PEFT):
    """LoRA with a magnitude a row."""

    alpha: float = 64


@dataclass(kw_only=True)
class CanonicalLoRA(PEFT):
    """One adapter a projection."""

    target_modules: list[str] = field(default_factory=lambda: list(DEFAULT_TARGETS["canonical_lora"]))
