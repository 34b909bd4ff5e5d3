"""What stands in each layer: from the description of uneven layers, the symbols of a hybrid, or the list of a LFM2 model."""

from primus.backends.megatron.params import Params, Problems, Rule
from primus.backends.megatron.patches.args import heterogeneous, mamba
from primus.backends.megatron.patches.args.architecture import num_layers

__all__ = ["RULES", "feed_forward", "mixing", "widths"]

_MIXING = {"M": "mamba", "*": "attention"}
_LFM = {"conv": "short_conv", "full_attention": "attention"}


def mixing(p: Params) -> list[str]:
    """Return the first half of each layer; empty where all have attention."""
    if mamba.is_mamba(p):
        return [_MIXING.get(symbol, "none") for symbol in mamba.pattern(p)]
    if p["lfm_layer_types"]:
        return [_LFM[kind] for kind in p["lfm_layer_types"]]
    return heterogeneous.mixing(p) if heterogeneous.is_heterogeneous(p) else []


def feed_forward(p: Params) -> list[str]:
    """Return the second half of each layer; empty where all have one."""
    if mamba.is_mamba(p):
        return ["mlp" if symbol in "-E" else "none" for symbol in mamba.pattern(p)]
    return heterogeneous.feed_forward(p) if heterogeneous.is_heterogeneous(p) else []


def widths(p: Params) -> list[int]:
    """Return the width of each layer's feed-forward part; empty where they are equal."""
    return heterogeneous.widths(p) if heterogeneous.is_heterogeneous(p) else []


def layers_are_said_once(p: Params) -> Problems:
    """A list of kinds has one for each layer, and nothing else says what they are."""
    kinds = p["lfm_layer_types"]
    if not kinds:
        return
    if len(kinds) != num_layers(p):
        yield f"lfm_layer_types ({p.source('lfm_layer_types')}) lists {len(kinds)} layers, but num_layers is {num_layers(p)}."
    if mamba.is_mamba(p):
        yield f"lfm_layer_types ({p.source('lfm_layer_types')}) does not go with {p.where('model_type')}: set model_type: gpt."
    if heterogeneous.is_heterogeneous(p):
        yield f"lfm_layer_types ({p.source('lfm_layer_types')}) does not go with a description of each layer: keep one."


def sequences_are_whole(p: Params) -> Problems:
    """A state runs from the first token of a sequence to its last, on one rank."""
    if not mamba.is_mamba(p) and "conv" not in (p["lfm_layer_types"] or ()):
        return
    what = "state" if mamba.is_mamba(p) else "convolution"
    where = p.where("model_type") if mamba.is_mamba(p) else f"lfm_layer_types ({p.source('lfm_layer_types')})"
    for key, off, why in (
        ("context_parallel_size", 1, "needs all of a sequence on one rank"),
        ("num_seq_splits", 1, "needs whole sequences"),
        ("reset_attention_mask", False, "would run on past the end of a document"),
    ):
        if p[key] != off:
            yield f"{p.where(key)}: the {what} of {where} {why}; set {key}: {str(off).lower()}."


def channels_are_divided_evenly(p: Params) -> Problems:
    """Ranks divide the channels of a convolution."""
    ranks = p["tensor_model_parallel_size"]
    if "conv" in (p["lfm_layer_types"] or ()) and p.required("hidden_size") % ranks:
        yield f"{p.where('hidden_size')} is not divisible by {p.where('tensor_model_parallel_size')}: use a size that is."


RULES: tuple[Rule, ...] = (layers_are_said_once, sequences_are_whole, channels_are_divided_evenly)
