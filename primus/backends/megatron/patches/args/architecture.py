"""Widths, heads and activation of the decoder.

Null widths follow from others: the feed-forward width from `hidden_size` (two thirds of four times it for SwiGLU, in steps of
64), the channels of a head from `hidden_size / num_attention_heads`.
"""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable, or_list
from primus.engine.config.model import GATED_ACTIVATIONS

__all__ = [
    "RULES",
    "activation",
    "ffn_hidden_size",
    "kv_channels",
    "nearest_divisors",
    "num_layers",
    "num_query_groups",
    "qk_norm",
]

_ACTIVATIONS = ("swiglu", "squared_relu", "quick_geglu", "openai_gelu")


def num_layers(p: Params) -> int:
    """Return the depth; `encoder_num_layers` is its other name."""
    return int(p.required("encoder_num_layers" if p["num_layers"] is None else "num_layers"))


def ffn_hidden_size(p: Params) -> int:
    """Return the feed-forward width."""
    if p["ffn_hidden_size"] is not None:
        return int(p["ffn_hidden_size"])
    hidden: int = p.required("hidden_size")
    return 64 * (8 * hidden // 192) if p["swiglu"] else 4 * hidden


def kv_channels(p: Params) -> int:
    """Return the channels of a query or key head; those of latent attention have keys of their own."""
    if p["multi_latent_attention"]:
        return int(p["qk_head_dim"] + p["qk_pos_emb_head_dim"])
    if p["kv_channels"] is not None:
        return int(p["kv_channels"])
    heads, hidden = p.required("num_attention_heads"), p.required("hidden_size")
    if hidden % heads:
        raise Unreadable("kv_channels")
    return int(hidden // heads)


def num_query_groups(p: Params) -> int:
    """Return the key/value heads; the key counts only under `group_query_attention`."""
    if p["group_query_attention"] and p["num_query_groups"] is not None:
        return int(p["num_query_groups"])
    return int(p.required("num_attention_heads"))


def activation(p: Params) -> str:
    """Return the feed-forward non-linearity; the fused bias-gelu is the tanh form, plain gelu the exact one."""
    for key in ("swiglu", "squared_relu", "quick_geglu"):
        if p[key]:
            return key
    fused = p["bias_gelu_fusion"] and p["add_bias_linear"]
    return "gelu_tanh" if p["openai_gelu"] or fused else "gelu"


def qk_norm(p: Params) -> str:
    """Return the norm on query and key heads; the weightless one wins."""
    if p["qk_l2_norm"]:
        return "l2"
    if not p["qk_layernorm"]:
        return "none"
    return "whole" if p["qk_norm_type"] == "per_layer" else "model"


def nearest_divisors(number: int, wanted: int) -> list[int]:
    """Return the divisors of `number` next below and above `wanted`."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = [d for d in divisors if d < wanted][-1:]
    above = [d for d in divisors if d > wanted][:1]
    return below + above


def depth_is_given_once(p: Params) -> Problems:
    """`num_layers` and its alias exclude each other."""
    depth, alias = p["num_layers"], p["encoder_num_layers"]
    if depth is not None and alias is not None:
        yield f"{p.where('num_layers')} and {p.where('encoder_num_layers')} both set the depth: set encoder_num_layers: null."
    elif depth is None and alias is None:
        yield f"num_layers is null ({p.source('num_layers')}): set the number of layers."


def sizes_are_set(p: Params) -> Problems:
    """A model has a width and heads."""
    for key in ("hidden_size", "num_attention_heads"):
        if p[key] is None:
            yield f"{key} is null ({p.source(key)}): set it."


def heads_divide_hidden(p: Params) -> Problems:
    """Without `kv_channels` the heads share the hidden size, unless they come from latent vectors."""
    if p["multi_latent_attention"]:
        return
    heads, hidden = p.required("num_attention_heads"), p.required("hidden_size")
    if p["kv_channels"] is None and hidden % heads:
        nearest = or_list(nearest_divisors(hidden, heads))
        yield (
            f"{p.where('hidden_size')} is not divisible by {p.where('num_attention_heads')}: "
            f"use {nearest} heads, or set kv_channels."
        )


def groups_divide_heads(p: Params) -> Problems:
    """Every key/value head serves the same number of query heads."""
    groups, heads = p["num_query_groups"], p.required("num_attention_heads")
    if not p["group_query_attention"] or groups is None:
        return
    if groups < 1 or heads % groups:
        nearest = or_list(nearest_divisors(heads, groups))
        yield f"{p.where('num_attention_heads')} is not divisible by {p.where('num_query_groups')}: use {nearest} query groups."


def activation_is_one(p: Params) -> Problems:
    """Only one activation is switched on."""
    chosen = [key for key in _ACTIVATIONS if p[key]]
    if len(chosen) > 1:
        wanted = [key for key in chosen if p.is_chosen(key)] or chosen[:1]
        others = ", ".join(f"{key}: false" for key in chosen if key != wanted[0])
        yield f"{' and '.join(p.where(key) for key in chosen)} exclude each other: set {others}."


def variants_are_gated(p: Params) -> Problems:
    """Only a gated activation has a gate to cut off and another half."""
    if activation(p) in GATED_ACTIVATIONS:
        if p["activation_func_clamp_value"] == 0:
            yield f"{p.where('activation_func_clamp_value')} leaves nothing of an activation: set a number above 0, or null."
        return
    for key, off in (("activation_func_clamp_value", "null"), ("glu_linear_offset", "0.0")):
        if p[key]:
            yield f"{p.where(key)} needs a gated activation: set swiglu or quick_geglu to true, or {key}: {off}."


RULES: tuple[Rule, ...] = (
    depth_is_given_once,
    sizes_are_set,
    heads_divide_hidden,
    groups_divide_heads,
    activation_is_one,
    variants_are_gated,
)
