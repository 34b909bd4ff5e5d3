"""State-space models: which layer is of which kind, and the sizes of a mixer.

A layer is a symbol: `M` mixer, `*` attention, `-` feed-forward, `E` experts; each is one branch of the residual stream.
"""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable, or_list
from primus.backends.megatron.patches.args.architecture import nearest_divisors, num_layers

__all__ = ["RULES", "additions_per_layer", "is_mamba", "num_heads", "pattern"]

_SYMBOLS = "M*-E"
_OTHERS = ("deepseek_v4", "kimi_k3")


def is_mamba(p: Params) -> bool:
    """Tell whether the decoder is a state-space model or a hybrid."""
    return bool(p["model_type"] == "mamba")


def num_heads(p: Params) -> int:
    """Return the heads of a mixer; 0 where there is none, or linear attention in its place."""
    if not is_mamba(p) or p["experimental_attention_variant"]:
        return 0
    if p["mamba_num_heads"] is not None:
        return int(p["mamba_num_heads"])
    width = p["mamba_expand"] * p.required("hidden_size")
    if width % p["mamba_head_dim"]:
        raise Unreadable("mamba_head_dim")
    return int(width // p["mamba_head_dim"])


def additions_per_layer(p: Params) -> int:
    """Return what a layer counts for in the scaling of first weights: layers of a hybrid have one branch, and count so."""
    return 1 if is_mamba(p) and p["is_hybrid_model"] else 2


def pattern(p: Params) -> str:
    """Return the symbols of the layers; Unreadable where a rule has something to say."""
    depth, given = num_layers(p), p["hybrid_override_pattern"]
    if not p["is_hybrid_model"]:
        return "M" * depth
    if given is None:
        return _spread(p, depth) if p["hybrid_mlp_ratio"] else _paired(p, depth)
    if len(given) != depth or set(given) - set(_SYMBOLS):
        raise Unreadable("hybrid_override_pattern")
    return str(given)


def family_is_built(p: Params) -> Problems:
    """Two families have stacks of their own."""
    if p["model_type"] in _OTHERS:
        yield f"{p.where('model_type')}: its stack is not built yet; use gpt or mamba."


def pattern_is_of_layers(p: Params) -> Problems:
    """One known symbol a layer, and experts exactly where there are some."""
    given = p["hybrid_override_pattern"]
    if not (is_mamba(p) and p["is_hybrid_model"]):
        if is_mamba(p) and p["num_experts"]:
            yield f"{p.where('num_experts')}: layers with experts are the E of hybrid_override_pattern (is_hybrid_model: true)."
        return
    if given is not None:
        where = p.where("hybrid_override_pattern")
        unknown = sorted(set(given) - set(_SYMBOLS))
        if unknown:
            yield f"{where} has {or_list(unknown)}: a layer is M (mixer), * (attention), - (feed-forward) or E (experts)."
        if len(given) != num_layers(p):
            yield f"{where} describes {len(given)} layers, but num_layers is {num_layers(p)}: write one symbol a layer."
    has_experts = "E" in (given or "")
    if has_experts != bool(p["num_experts"]):
        what = "has layers with experts: set num_experts" if has_experts else "has no E: write one for each layer with experts"
        yield f"{p.where('hybrid_override_pattern')} {what} ({p.where('num_experts')})."


def ratios_are_possible(p: Params) -> Problems:
    """Without a pattern, shares of the layers must leave mixers between them."""
    if not (is_mamba(p) and p["is_hybrid_model"]) or p["hybrid_override_pattern"] is not None:
        return
    depth = num_layers(p)
    if p["hybrid_mlp_ratio"]:
        if round(depth * p["hybrid_attention_ratio"]) + round(depth * p["hybrid_mlp_ratio"]) >= depth:
            yield (
                f"{p.where('hybrid_attention_ratio')} and {p.where('hybrid_mlp_ratio')} leave no mixer among {depth} layers: "
                "let them sum to less than 1."
            )
        return
    if depth % 2:
        yield (
            f"num_layers {depth} of a hybrid are pairs of a mixer or attention with a feed-forward layer: use an even number, "
            "or hybrid_override_pattern."
        )
    if p["hybrid_attention_ratio"] > 0.5:
        yield f"{p.where('hybrid_attention_ratio')} is more than half of the mixers: use 0.5, or hybrid_override_pattern."


def heads_are_divided_evenly(p: Params) -> Problems:
    """Heads fill the width, groups divide them, and ranks divide groups."""
    if not is_mamba(p) or p["experimental_attention_variant"]:
        return
    groups, ranks = p["mamba_num_groups"], p["tensor_model_parallel_size"]
    if groups % ranks:
        nearest = or_list(nearest_divisors(groups, ranks))
        yield f"{p.where('mamba_num_groups')} is not divisible by {p.where('tensor_model_parallel_size')}: use {nearest} ranks."
    width = p["mamba_expand"] * p.required("hidden_size")
    if p["mamba_num_heads"] is None and width % p["mamba_head_dim"]:
        yield (
            f"{p.where('mamba_expand')} x {p.where('hidden_size')} is not divisible by {p.where('mamba_head_dim')}: use "
            "another width of heads, or set mamba_num_heads."
        )
        return
    heads = num_heads(p)
    if heads % groups:
        nearest = or_list(nearest_divisors(heads, groups))
        yield f"{heads} heads of a Mamba mixer are not divisible by {p.where('mamba_num_groups')}: use {nearest} groups."


RULES: tuple[Rule, ...] = (
    family_is_built,
    pattern_is_of_layers,
    ratios_are_possible,
    heads_are_divided_evenly,
)


def _paired(p: Params, depth: int) -> str:
    """Each mixer or attention is followed by a feed-forward layer; attention comes first in equal stretches."""
    pairs = depth // 2
    attentions = int(pairs * p["hybrid_attention_ratio"])
    mixers = pairs - attentions
    if depth % 2 or mixers < attentions:
        raise Unreadable("hybrid_attention_ratio")
    between, rest = divmod(mixers, attentions) if attentions else (0, mixers)
    return ("*-" + "M-" * between) * attentions + "M-" * rest


def _spread(p: Params, depth: int) -> str:
    """Attention lies evenly between mixers, first and last layers being mixers; feed-forward then replaces some of these."""
    attentions, mlps = (round(depth * p[key]) for key in ("hybrid_attention_ratio", "hybrid_mlp_ratio"))
    mixers = depth - attentions
    if mixers <= mlps:
        raise Unreadable("hybrid_mlp_ratio")
    layers = _replaced(["M"] * depth, "*", mixers / (attentions + 1)) if attentions else ["M"] * depth
    return "".join(_replaced(layers, "-", (mixers - mlps) / mlps) if mlps else layers)


def _replaced(layers: list[str], symbol: str, stretch: float) -> list[str]:
    """Put the symbol in place of a mixer after each stretch of them."""
    left, result = stretch, list[str]()
    for layer in layers:
        if layer != "M":
            result.append(layer)
        elif left < 0.5:
            result.append(symbol)
            left += stretch
        else:
            result.append(layer)
            left -= 1
    return result
