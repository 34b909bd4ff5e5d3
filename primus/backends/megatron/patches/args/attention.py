"""Variants of attention scores: windows, sinks, soft caps."""

from primus.backends.megatron.params import Params, Problems, Rule
from primus.backends.megatron.patches.args.context import communication

__all__ = ["RULES", "positive", "window"]


def window(p: Params) -> int | None:
    """Return the keys that a query sees; a window belongs to sinks, and 0 is none."""
    return (p["sink_sliding_window"] or None) if p["use_sink_attention"] else None


def positive(p: Params, key: str) -> float | None:
    """Return a bound; null, zero and negative numbers are none."""
    cap: float | None = p[key]
    return cap if cap is not None and cap > 0 else None


def gathered_scores_are_not_dropped(p: Params) -> Problems:
    """Where keys are gathered, dropout is torch's own, which knows neither sinks nor caps."""
    varies = [key for key in ("use_sink_attention", "attn_logit_softcapping") if p[key]]
    if varies and p["attention_dropout"] and p["context_parallel_size"] > 1 and "allgather" in communication(p):
        yield (
            f"{p.where('attention_dropout')} with {p.where(varies[0])} is not possible with cp_comm_type allgather: use p2p or "
            "a2a, or set attention_dropout: 0."
        )


RULES: tuple[Rule, ...] = (gathered_scores_are_not_dropped,)
