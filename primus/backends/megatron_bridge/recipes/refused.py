"""Recipes of Megatron-Bridge that this engine does not run, each with the reason."""

from collections.abc import Mapping

__all__ = ["REFUSED_FLAVORS", "REFUSED_RECIPES", "refusal"]

_VISION = "it is a vision-language recipe, and this engine trains text models"
_GEMMA = (
    "Gemma multiplies embeddings by the root of the hidden size and gates with a tanh GELU, and this engine's models do neither"
)
_NEMOTRON = "this engine has no preset of its layers yet"

REFUSED_RECIPES: Mapping[str, str] = {
    "gemma.gemma2": _GEMMA,
    "gemma.gemma3": _GEMMA,
    "gemma3_vl.gemma3_vl": _VISION,
    "glm_vl.glm_45v": _VISION,
    "ministral3.ministral3": _VISION,
    "nemotron_vl.nemotron_nano_v2_vl": _VISION,
    "nemotronh.nemotron_nano_v2": _NEMOTRON,
    "qwen_vl.qwen25_vl": _VISION,
    "qwen_vl.qwen3vl": _VISION,
    "qwen_vl.qwen3_vl": _VISION,
}
"""Whole recipes."""

_LOW = "it trains in FP8 or FP4, and this engine has neither"

REFUSED_FLAVORS: Mapping[tuple[str, str], str] = {
    ("llama.llama3", "llama3_8b_low_precision_pretrain_config"): f"{_LOW}; llama3_8b_pretrain_config trains in bf16",
    ("llama.llama2", "llama2_70b_lora_mxfp4_config"): f"{_LOW}; llama2_70b_peft_config trains the same adapters in bf16",
    ("nemotronh.nemotronh", "nemotronh_47b_pretrain_config"): _NEMOTRON,
    ("nemotronh.nemotronh", "nemotronh_47b_finetune_config"): _NEMOTRON,
}
"""Single flavors of recipes that run."""


def refusal(recipe: str, flavor: str) -> str | None:
    """Return why a recipe or its flavor does not run; None if nothing is known against it."""
    return REFUSED_RECIPES.get(recipe) or REFUSED_FLAVORS.get((recipe, flavor))
