"""What stands in each layer: from the symbols of a hybrid, the kinds of an LFM2 model, the rhythm of linear layers, or the
description of uneven ones.
"""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args import heterogeneous, mamba
from primus.backends.megatron.patches.args.architecture import num_layers
from primus.backends.megatron.patches.args.layer_list import layer_list

__all__ = ["RULES", "VARIANT", "feed_forward", "mixing", "widths"]

_MIXING = {"M": "mamba", "*": "attention"}
VARIANT = "experimental_attention_variant"
_LINEAR = {"gated_delta_net": "gated_delta", "kimi_delta_attention": "kimi_delta"}
_LFM = {"conv": "short_conv", "full_attention": "attention"}


def mixing(p: Params) -> list[str]:
    """Return the first half of each layer; empty where all have attention."""
    if mamba.is_mamba(p):
        symbols = _MIXING | ({"M": _LINEAR[p[VARIANT]]} if p[VARIANT] else {})
        return [symbols.get(symbol, "none") for symbol in mamba.pattern(p)]
    if p[VARIANT]:
        rhythm = _linear_layers(p)
        if isinstance(rhythm, str):
            raise Unreadable("linear_attention_freq")
        return [_LINEAR[p[VARIANT]] if is_linear else "attention" for is_linear in rhythm]
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
    """A list of kinds has one for each layer, and only one key says what they are."""
    kinds = p["lfm_layer_types"]
    if kinds and len(kinds) != num_layers(p):
        yield f"{_lfm(p)} lists {len(kinds)} layers, but num_layers is {num_layers(p)}."
    ways = [p.where("model_type")] if mamba.is_mamba(p) else [p.where(VARIANT)] if p[VARIANT] else []
    ways += [_lfm(p)] if kinds else []
    ways += ["a description of each layer"] if heterogeneous.is_heterogeneous(p) else []
    if len(ways) > 1:
        yield f"{' and '.join(ways)} exclude each other: each says what stands in all layers; keep one."


def sequences_are_whole(p: Params) -> Problems:
    """A state runs from the first token of a sequence to its last, on one rank."""
    if mamba.is_mamba(p):
        where = p.where("model_type")
    elif p[VARIANT]:
        where = p.where(VARIANT)
    elif "conv" in (p["lfm_layer_types"] or ()):
        where = _lfm(p)
    else:
        return
    for key, off, why in (
        ("context_parallel_size", 1, "needs all of a sequence on one rank"),
        ("num_seq_splits", 1, "needs whole sequences"),
        ("reset_attention_mask", False, "would run on past the end of a document"),
    ):
        if p[key] != off:
            yield f"{p.where(key)}: the state of {where} {why}; set {key}: {str(off).lower()}."


def linear_layers_are_built(p: Params) -> Problems:
    """The rhythm is understood, value heads share key heads evenly, and ranks divide these."""
    if not p[VARIANT]:
        return
    rhythm = None if mamba.is_mamba(p) else _linear_layers(p)
    if isinstance(rhythm, str):
        yield f"{p.where('linear_attention_freq')}: {rhythm}"
    keys, values, ranks = p["linear_num_key_heads"], p["linear_num_value_heads"], p["tensor_model_parallel_size"]
    if values % keys:
        yield f"{p.where('linear_num_value_heads')} is not a multiple of {p.where('linear_num_key_heads')}: use one that is."
    if keys % ranks:
        yield f"{p.where('linear_num_key_heads')} is not divisible by {p.where('tensor_model_parallel_size')}: use fewer ranks."


def residual_has_one_norm(p: Params) -> Problems:
    """Kimi delta attention has two norms beside one another, so that there is no "after the norm" to add to."""
    if p[VARIANT] == "kimi_delta_attention" and p["apply_residual_connection_post_layernorm"]:
        yield (
            f"{p.where('apply_residual_connection_post_layernorm')}: {p.where(VARIANT)} has two norms beside one another, "
            "and none to add to; set apply_residual_connection_post_layernorm: false."
        )


def channels_are_divided_evenly(p: Params) -> Problems:
    """Ranks divide the channels of a convolution."""
    ranks = p["tensor_model_parallel_size"]
    if "conv" in (p["lfm_layer_types"] or ()) and p.required("hidden_size") % ranks:
        yield f"{p.where('hidden_size')} is not divisible by {p.where('tensor_model_parallel_size')}: use a size that is."


RULES: tuple[Rule, ...] = (
    layers_are_said_once,
    sequences_are_whole,
    linear_layers_are_built,
    residual_has_one_norm,
    channels_are_divided_evenly,
)


def _lfm(p: Params) -> str:
    return f"lfm_layer_types ({p.source('lfm_layer_types')})"


def _linear_layers(p: Params) -> list[int] | str:
    """Return 1 for every linear layer and 0 for those with attention, or what is wrong."""
    if p["linear_attention_freq"] is None:
        return [1] * num_layers(p)
    return layer_list(
        p["linear_attention_freq"],
        num_layers(p),
        rhythm=lambda number, every: (number + 1) % every != 0,
        meaning="0 (attention) or 1 (linear)",
        example="([1]*3+[0])*6",
    )
