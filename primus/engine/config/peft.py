"""Adapters: which linears get one, of what kind and size; what is not an adapter is frozen then."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DEFAULT_TARGETS", "PEFTConfig", "value_problems"]

InitMethod = Literal["xavier", "normal", "kaiming", "zero"]
Scheme = Literal["lora", "canonical_lora", "dora"]

DEFAULT_TARGETS: dict[Scheme, tuple[str, ...]] = {
    "lora": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "dora": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "canonical_lora": (
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_proj",
        "linear_fc1_up",
        "linear_fc1_gate",
        "linear_fc2",
    ),
}
"""What recipes adapt unless they say otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PEFTConfig:
    """LoRA (arXiv 2106.09685), canonical LoRA, or DoRA (arXiv 2402.09353): W x + alpha/dim B A x beside a frozen W."""

    scheme: Scheme = "lora"
    """`canonical_lora` has an adapter for each of q, k, v, gate and up, which share one linear here."""
    target_modules: tuple[str, ...] = DEFAULT_TARGETS["lora"]
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
    share_expert_adapters: bool = True
    """One adapter for all experts of a layer; False: one for each."""
    normalize_moe_lora: bool = False
    """Adapters of experts have rank dim / moe_router_topk, so that a token meets as many as elsewhere."""


def value_problems(peft: PEFTConfig, *, router_topk: int = 1) -> list[tuple[str, str]]:
    """Return fields whose values cannot be, each with the reason and the way out."""
    problems: list[tuple[str, str]] = []
    if peft.dim < 1:
        problems.append(("dim", f"the rank of adapters is {peft.dim}; it counts rows of A and is at least 1"))
    if peft.alpha <= 0:
        problems.append(("alpha", f"alpha is {peft.alpha:g}; B A is multiplied by alpha / dim, which must be above 0"))
    if not 0.0 <= peft.dropout < 1.0:
        problems.append(("dropout", f"dropout is {peft.dropout:g}; it is a share of values, from 0 to below 1"))
    if peft.scheme == "dora" and peft.dropout_position != "pre":
        problems.append(
            ("dropout_position", "dora drops what A reads: dropout_position is post and must be pre, or take peft lora")
        )
    if peft.exclude_modules and peft.target_modules:
        problems.append(
            (
                "exclude_modules",
                "exclude_modules takes from all linears: give it with an empty target_modules, or not at all",
            )
        )
    if peft.normalize_moe_lora and peft.dim % router_topk:
        problems.append(
            (
                "normalize_moe_lora",
                f"dim ({peft.dim}) is divided by moe_router_topk ({router_topk}): take a multiple of it",
            )
        )
    return problems
