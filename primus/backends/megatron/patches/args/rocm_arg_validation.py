"""What the accelerator's vendor asks for, as far as it holds on every device.

Deterministic algorithms exclude the kernels that are not. The switches of the environment that the vendor's libraries read are
the engine's to set, so they are no rule here; the keys of Primus-Turbo stop the run as long as they are pending.
"""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES"]


def determinism_lays_preset_kernels_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's `use_flash_attn: true` gives way to the user's `deterministic_mode: true`."""
    if p["deterministic_mode"] and p["use_flash_attn"] and p.is_preset("use_flash_attn"):
        notice = f"{p.where('use_flash_attn')} is laid aside: {p.where('deterministic_mode')} uses deterministic kernels."
        yield Rewrite(key="use_flash_attn", value=False, reason="deterministic_mode is true", notice=notice)


def determinism_excludes_kernels(p: Params) -> Problems:
    """Kernels whose sums have no fixed order cannot be deterministic."""
    if not p["deterministic_mode"]:
        return
    for key in ("use_flash_attn", "cross_entropy_loss_fusion"):
        if p[key]:
            yield f"{p.where('deterministic_mode')} excludes {p.where(key)}: set {key}: false."


DERIVATIONS: tuple[Derivation, ...] = (determinism_lays_preset_kernels_aside,)
RULES: tuple[Rule, ...] = (determinism_excludes_kernels,)
