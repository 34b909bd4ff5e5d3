"""Dtypes of weights and gradients, and the loss scale.

bf16 and fp16 keep fp32 main weights; under bf16 gradients are summed in fp32 unless `grad_reduce_in_bf16` asks for less.
"""

from collections.abc import Iterator

from primus.backends.megatron.params import Derivation, Params, Problems, Rewrite, Rule

__all__ = ["DERIVATIONS", "RULES", "grad_dtype", "loss_scale", "params_dtype"]


def params_dtype(p: Params) -> str:
    """Return the dtype of weights and compute."""
    if p["fp16"]:
        return "float16"
    return "bfloat16" if p["bf16"] else "float32"


def grad_dtype(p: Params) -> str:
    """Return the dtype in which gradients are accumulated and reduced."""
    if p["fp16"]:
        return "float32" if p["accumulate_allreduce_grads_in_fp32"] else "float16"
    return "bfloat16" if p["bf16"] and p["grad_reduce_in_bf16"] else "float32"


def loss_scale(p: Params) -> float | None:
    """Return the constant loss scale; None (also for 0) means dynamic under fp16 and none otherwise."""
    return float(p["loss_scale"]) if p["loss_scale"] else None


def fp16_lays_preset_bf16_aside(p: Params) -> Iterator[Rewrite]:
    """A preset's `bf16: true` gives way to the user's `fp16: true`."""
    if p["fp16"] and p["bf16"] and p.is_preset("bf16"):
        notice = f"{p.where('bf16')} is laid aside: {p.where('fp16')} chooses the dtype."
        yield Rewrite(key="bf16", value=False, reason="fp16 is set", notice=notice)


def dynamic_scaling_expects_overflow(p: Params) -> Iterator[Rewrite]:
    """Overflow is how the dynamic scale finds its level, so it is no reason to stop."""
    if _scales_dynamically(p) and p["check_for_nan_in_loss_and_grad"]:
        key = "check_for_nan_in_loss_and_grad"
        notice = f"{p.where(key)} is switched off: the dynamic loss scale of fp16 skips such iterations."
        yield Rewrite(key=key, value=False, reason="fp16 scales dynamically", notice=notice)


def half_dtype_is_one(p: Params) -> Problems:
    """A run has one dtype."""
    if p["fp16"] and p["bf16"]:
        yield f"{p.where('fp16')} and {p.where('bf16')} exclude each other: set one of them to false."


def half_options_have_half_weights(p: Params) -> Problems:
    """Options of 16-bit runs need one."""
    if p["fp16_lm_cross_entropy"] and not p["fp16"]:
        yield f"{p.where('fp16_lm_cross_entropy')} needs fp16: true (it is {p.where('fp16')})."
    if p["fp32_residual_connection"] and not (p["fp16"] or p["bf16"]):
        yield f"{p.where('fp32_residual_connection')} needs bf16 or fp16: drop it, the residual is fp32 already."


def scaler_is_consistent(p: Params) -> Problems:
    """The dynamic scale starts above its floor."""
    if _scales_dynamically(p) and not 0 < p["min_loss_scale"] <= p["initial_loss_scale"]:
        yield f"{p.where('min_loss_scale')} must lie above 0 and not above {p.where('initial_loss_scale')}."


DERIVATIONS: tuple[Derivation, ...] = (fp16_lays_preset_bf16_aside, dynamic_scaling_expects_overflow)
RULES: tuple[Rule, ...] = (
    half_dtype_is_one,
    half_options_have_half_weights,
    scaler_is_consistent,
)


def _scales_dynamically(p: Params) -> bool:
    """Tell whether the dynamic loss scaler runs."""
    return bool(p["fp16"]) and loss_scale(p) is None
