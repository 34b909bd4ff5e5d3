"""Variants of attention scores: windows, sinks, soft caps."""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.architecture import num_layers, num_query_groups
from primus.backends.megatron.patches.args.context import communication
from primus.backends.megatron.patches.args.layer_list import layer_list

__all__ = ["RULES", "full_layers", "positive", "window"]


def window(p: Params) -> int | None:
    """Return the keys that a query sees, its own among them; `window_size` counts those before it, and -1 is all of them."""
    if _has_sink_window(p):
        return int(p["sink_sliding_window"])
    sides = p["window_size"]
    return None if sides is None or sides[:1] == [-1] else sides[0] + 1


def full_layers(p: Params) -> tuple[int, ...]:
    """Return the numbers of the layers without the window."""
    if window(p) is None:
        return ()
    if _has_sink_window(p):
        return tuple(range(1, num_layers(p), 2)) if p["sink_window_even_layers_only"] else ()
    listed = _windowed(p)
    if isinstance(listed, str):
        raise Unreadable("window_attn_skip_freq")
    return tuple(number for number, has_window in enumerate(listed) if not has_window)


def _has_sink_window(p: Params) -> bool:
    """That window belongs to sinks, and 0 is none."""
    return bool(p["use_sink_attention"] and p["sink_sliding_window"])


def _windowed(p: Params) -> list[int] | str:
    if p["window_attn_skip_freq"] is None:
        return [1] * num_layers(p)
    return layer_list(
        p["window_attn_skip_freq"],
        num_layers(p),
        rhythm=lambda number, every: (number + 1) % every != 0,
        meaning="0 (sees everything) or 1 (has the window)",
        example="([1]*5+[0])*8",
    )


def positive(p: Params, key: str) -> float | None:
    """Return a bound; null, zero and negative numbers are none."""
    cap: float | None = p[key]
    return cap if cap is not None and cap > 0 else None


def windows_are_one_and_causal(p: Params) -> Problems:
    """A window has two sides, of which causal attention leaves one open, and there are not two of them."""
    sides = p["window_size"]
    if sides is None:
        return
    here = p.where("window_size")
    if len(sides) != 2 or sides[0] < -1:
        yield f"{here}: write two numbers, the keys before a token and 0, such as [127, 0]; -1 before means all."
    elif sides[1] not in (0, -1):
        yield f"{here}: attention is causal, no key behind a token is seen; set window_size: [{sides[0]}, 0]."
    if _has_sink_window(p):
        yield f"{here} and {p.where('sink_sliding_window')} are two windows: leave one out."
    listed = _windowed(p)
    if isinstance(listed, str):
        yield f"{p.where('window_attn_skip_freq')}: {listed}"
    elif sides[:1] != [-1] and not any(listed):
        yield f"{p.where('window_attn_skip_freq')} leaves no layer the window of {here}: set it to null, or to 2 or more."


def heads_are_normed_together(p: Params) -> Problems:
    """The norm over all heads is an RMSNorm, of heads that lie on one rank each."""
    if not p["qk_layernorm"] or p["qk_l2_norm"] or p["qk_norm_type"] != "per_layer":
        return
    here, groups, ranks = p.where("qk_norm_type"), num_query_groups(p), p["tensor_model_parallel_size"]
    if p["multi_latent_attention"]:
        yield f"{here} does not go with {p.where('multi_latent_attention')}, whose norms are of latent vectors: set per_head."
    elif p["normalization"] != "RMSNorm":
        yield f"{here} needs normalization RMSNorm (it is {p.where('normalization')})."
    elif groups < ranks:
        yield f"{here} needs a key head for each rank: {p.where('tensor_model_parallel_size')} is more than {groups} of them."


def latent_heads_have_no_gate(p: Params) -> Problems:
    """The gate is a part of the projection that latent attention replaces."""
    if p["multi_latent_attention"] and p["attention_output_gate"]:
        yield f"{p.where('attention_output_gate')} does not go with {p.where('multi_latent_attention')}: set it to false."


def gathered_scores_are_not_dropped(p: Params) -> Problems:
    """Where keys are gathered, dropout is torch's own, which knows neither sinks nor caps."""
    varies = [key for key in ("use_sink_attention", "attn_logit_softcapping") if p[key]]
    if varies and p["attention_dropout"] and p["context_parallel_size"] > 1 and "allgather" in communication(p):
        yield (
            f"{p.where('attention_dropout')} with {p.where(varies[0])} is not possible with cp_comm_type allgather: use p2p or "
            "a2a, or set attention_dropout: 0."
        )


RULES: tuple[Rule, ...] = (
    windows_are_one_and_causal,
    heads_are_normed_together,
    latent_heads_have_no_gate,
    gathered_scores_are_not_dropped,
)
