"""Variants of attention scores: windows, sinks, soft caps."""

from primus.backends.megatron.params import Params, Problems, Rule, Unreadable
from primus.backends.megatron.patches.args.architecture import num_layers
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
    gathered_scores_are_not_dropped,
)
