"""Kernels of Primus-Turbo's keys: what their switches ask for under the master switch."""

from collections.abc import Callable, Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES", "SWITCHES", "wanted"]

SWITCHES = (
    "use_turbo_attention",
    "use_turbo_rms_norm",
    "use_turbo_fused_act_with_probs",
    "use_turbo_grouped_gemm",
    "use_turbo_deepep",
    "turbo_sync_free_moe_stage",
)
"""What the master switch lets act."""
_BUNDLE = {"use_turbo_deepep": 2, "use_turbo_fused_act_with_probs": 3}
"""Switches, and the first stage of sync-free experts that turns each on."""


def wanted(key: str) -> Callable[[Params], bool]:
    """Return what tells whether a switch is on, and the master switch too."""
    return lambda p: bool(p["enable_primus_turbo"] and p[key])


def stage_is_a_bundle(p: Params) -> Iterator[Rewrite]:
    """A stage turns other switches on, whatever was said of them."""
    stage = p["turbo_sync_free_moe_stage"]
    if not (p["enable_primus_turbo"] and p["num_experts"]):
        return
    for key, first in _BUNDLE.items():
        if stage >= first and not p[key]:
            yield Rewrite(
                key=key,
                value=True,
                reason=f"turbo_sync_free_moe_stage is {stage}",
                notice=f"{p.where(key)} gives way to true: {p.where('turbo_sync_free_moe_stage')}.",
            )


def stage_has_what_it_needs(p: Params) -> Problems:
    """Stages build on the kernels, later ones on the grouped product."""
    stage, place = p["turbo_sync_free_moe_stage"], p.where("turbo_sync_free_moe_stage")
    if stage > 0 and not p["enable_primus_turbo"]:
        yield f"{place} needs enable_primus_turbo: true ({p.where('enable_primus_turbo')})."
    if stage > 1 and not p["use_turbo_grouped_gemm"]:
        yield f"{place} needs use_turbo_grouped_gemm: true ({p.where('use_turbo_grouped_gemm')})."


def grouped_products_are_one_kind(p: Params) -> Problems:
    """The older grouped product has weights of another form."""
    if p["use_turbo_grouped_gemm"] and p["moe_use_legacy_grouped_gemm"]:
        yield (
            f"{p.where('use_turbo_grouped_gemm')} and {p.where('moe_use_legacy_grouped_gemm')} exclude each other: set "
            "moe_use_legacy_grouped_gemm: false."
        )


DERIVATIONS: tuple[Derivation, ...] = (stage_is_a_bundle,)
RULES: tuple[Rule, ...] = (grouped_products_are_one_kind, stage_has_what_it_needs)
