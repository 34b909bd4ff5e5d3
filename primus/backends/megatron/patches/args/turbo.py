"""Kernels of Primus-Turbo's keys: what their switches ask for under the master switch."""

from collections.abc import Callable

from primus.backends.megatron.params import Params, Problems, Rule

__all__ = ["RULES", "SWITCHES", "wanted"]

SWITCHES = ("use_turbo_rms_norm", "use_turbo_fused_act_with_probs", "use_turbo_grouped_gemm")
"""Keys that ask for a kernel."""


def wanted(key: str) -> Callable[[Params], bool]:
    """Return what tells whether a switch is on, and the master switch too."""
    return lambda p: bool(p["enable_primus_turbo"] and p[key])


def grouped_products_are_one_kind(p: Params) -> Problems:
    """The older grouped product has weights of another form."""
    if p["use_turbo_grouped_gemm"] and p["moe_use_legacy_grouped_gemm"]:
        yield (
            f"{p.where('use_turbo_grouped_gemm')} and {p.where('moe_use_legacy_grouped_gemm')} exclude each other: set "
            "moe_use_legacy_grouped_gemm: false."
        )


RULES: tuple[Rule, ...] = (grouped_products_are_one_kind,)
