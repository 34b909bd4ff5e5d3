"""Adapters: a scheme's dataclass as the engine's configuration."""

from primus.backends.megatron_bridge.container import PEFT, CanonicalLoRA, DoRA
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.engine.config import PEFTConfig
from primus.engine.config.peft import value_problems

__all__ = ["adapters"]

_PART = "peft"
_ONLY = {
    "lora_dtype": (None, "adapters have the dtype of the weights"),
    "experts_shared_outer_loras": (False, "matrices that experts share on one side only are not built"),
}
_WITHOUT_EFFECT = {
    "a2a_experimental": "it is another way of exchange with the same numbers",
    "sequence_parallel_input_regather": "what adapters read is gathered once",
}


def adapters(raw: Raw, problems: list[str], notices: list[str]) -> PEFTConfig | None:
    """Return the adapters of a run; None where all weights are trained."""
    given = raw.config.peft
    if given is None:
        return None
    if not isinstance(given, PEFT):
        problems.append(f"peft {given!r} ({raw.source(_PART)}) must be none, lora, dora, canonical_lora, or a map with type.")
        return None
    for name, (value, why) in _ONLY.items():
        if getattr(given, name) != value:
            problems.append(f"{raw.where(f'{_PART}.{name}')} is not implemented yet: {why}.")
    notices += [
        f"{raw.where(f'{_PART}.{name}')} has no effect: {why}."
        for name, why in _WITHOUT_EFFECT.items()
        if raw.is_chosen(f"{_PART}.{name}") and getattr(given, name)
    ]
    made = PEFTConfig(
        scheme="dora" if isinstance(given, DoRA) else "canonical_lora" if isinstance(given, CanonicalLoRA) else "lora",
        target_modules=tuple(given.target_modules),
        exclude_modules=tuple(given.exclude_modules),
        dim=given.dim,
        alpha=float(given.alpha),
        dropout=float(given.dropout),
        dropout_position=given.dropout_position,  # type: ignore[arg-type] # looked at below
        lora_A_init_method=given.lora_A_init_method,  # type: ignore[arg-type]
        lora_B_init_method=given.lora_B_init_method,  # type: ignore[arg-type]
        share_expert_adapters=given.share_expert_adapters,
        normalize_moe_lora=given.normalize_moe_lora,
    )
    topk = raw.config.model.moe_router_topk if raw.config.model.num_moe_experts else 1
    problems += [f"{why} ({raw.source(f'{_PART}.{name}', _PART)})." for name, why in value_problems(made, router_topk=topk)]
    problems += _choices(raw, given)
    return made


def _choices(raw: Raw, given: PEFT) -> list[str]:
    ways = ("xavier", "normal", "kaiming", "zero")
    allowed = {"dropout_position": ("pre", "post"), "lora_A_init_method": ways, "lora_B_init_method": ways}
    return [
        f"{raw.where(f'{_PART}.{name}')} must be one of {', '.join(words)}."
        for name, words in allowed.items()
        if getattr(given, name) not in words
    ]
