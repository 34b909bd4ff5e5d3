"""`precision_config`: a name or fields, and the flat keys that they are (Megatron-Bridge's mixed precision recipes).

What it says goes before `bf16` and the like in other places. Half-precision weights always have fp32 main weights.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.container import MixedPrecisionConfig
from primus.backends.megatron_bridge.translate.raw import Raw
from primus.core.experiment import Value, nearest
from primus.core.keys import show_value
from primus.errors import ConfigError

__all__ = ["NAMES", "fields_of", "named", "precision_values"]

_BF16 = {"bf16": True, "params_dtype": "bf16", "pipeline_dtype": "bf16"}
_FP16 = {"fp16": True, "params_dtype": "fp16", "pipeline_dtype": "fp16", "grad_reduce_in_fp32": False}
_DELAYED = {
    "fp8": "hybrid",
    "fp8_recipe": "delayed",
    "fp8_amax_history_len": 1024,
    "fp8_amax_compute_algo": "max",
    "fp8_param_gather": True,
}
_CURRENT = {
    "fp8": "hybrid",
    "fp8_recipe": "tensorwise",
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
    "fp8_param_gather": True,
}
_SUBCHANNEL = {"fp8": "hybrid", "fp8_recipe": "blockwise"}
_MXFP8 = {"fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}

NAMES: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"fp32": True, "params_dtype": "fp32", "pipeline_dtype": "fp32"},
    "bf16_mixed": _BF16,
    "fp16_mixed": _FP16,
    **{
        f"{name}_with_{kind}_mixed": {**base, **eight}
        for name, base in (("bf16", _BF16), ("fp16", _FP16))
        for kind, eight in (
            ("fp8_delayed_scaling", _DELAYED),
            ("fp8_current_scaling", _CURRENT),
            ("fp8_subchannel_scaling", _SUBCHANNEL),
            ("mxfp8", _MXFP8),
        )
    },
    "bf16_with_nvfp4_mixed": {**_BF16, "fp4": "e2m1", "fp4_param_gather": True},
}
"""What a name sets; `-` may stand for `_`."""

_DECIDED = {"fp32": False, "fp16": False, "bf16": False, "grad_reduce_in_fp32": True}
"""Fields that every name decides, where it says nothing else of them."""

_DTYPES = {
    **dict.fromkeys(("fp32", "float32", "torch.float32", "float"), "fp32"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "torch.float16", "half"), "fp16"),
}
_EIGHT = "8-bit precision is not built"
_NARROW = {
    "fp8_dot_product_attention": _EIGHT,
    "fp8_multi_head_attention": _EIGHT,
    "fp8_param": _EIGHT,
    "reuse_grad_buf_for_mxfp8_param_ag": _EIGHT,
    "fp4_param_gather": "4-bit precision is not built",
}
"""Fields without a flat key, and why they may not leave their default."""
_SCALING = ("loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis")


def named(name: str) -> MixedPrecisionConfig:
    """Return the precision of a name; ConfigError with the nearest names if there is none."""
    return MixedPrecisionConfig(**fields_of(name))


def fields_of(name: str) -> Mapping[str, Any]:
    """Return the fields that a name decides; ConfigError with the nearest names if there is none."""
    plain = name.replace("-", "_")
    if plain not in NAMES:
        close = [f"{plain}_mixed"] if f"{plain}_mixed" in NAMES else nearest(plain, NAMES)
        hint = f"Did you mean {' or '.join(close)}?" if close else "There are bf16_mixed, fp16_mixed and fp32."
        raise ConfigError(f"precision_config {show_value(name)} is not known. {hint}")
    return {**_DECIDED, **NAMES[plain]}


def precision_values(raw: Raw, problems: list[str]) -> dict[str, Value]:
    """Return the flat values of a run's precision."""
    given = raw.config.mixed_precision
    try:
        precision = named(given) if isinstance(given, str) else given
    except ConfigError as error:
        problems += [f"{problem} ({raw.source('mixed_precision')})" for problem in error.problems]
        return {}
    if precision is None:
        return _from_model(raw, problems)
    if isinstance(given, str) and (precision.fp8 or precision.fp4):
        problems.append(
            f"precision_config {given} ({raw.source('mixed_precision')}) is not implemented yet: it computes in "
            f"{8 if precision.fp8 else 4} bits; set bf16_mixed, fp16_mixed or fp32."
        )
        precision = named("bf16_mixed" if precision.bf16 else "fp16_mixed")
    # A name that the user wrote decides all its fields.
    path = "mixed_precision"
    chosen = [name for name in ("fp32", "bf16", "fp16") if getattr(precision, name)]
    if len(chosen) > 1:
        places = raw.source(*(f"{path}.{name}" for name in chosen), path)
        problems.append(
            f"precision_config has {' and '.join(chosen)} both true ({places}): one of them is the dtype of weights; set "
            f"precision_config: {chosen[-1]}_mixed for one."
        )
    dtype = "bf16" if precision.bf16 else "fp16" if precision.fp16 else "fp32"
    _check_dtypes(raw, precision, dtype, problems)
    values = {
        "bf16": raw.value(precision.bf16, f"{path}.bf16", path),
        "fp16": raw.value(precision.fp16, f"{path}.fp16", path),
    }
    values |= _sums(dtype, raw.value(precision.grad_reduce_in_fp32, f"{path}.grad_reduce_in_fp32", path))
    _check_twins(raw, precision, dtype, problems)
    # The scale of a loss is nothing that a name of another dtype asks for.
    values |= {name: raw.value(getattr(precision, name), f"{path}.{name}") for name in _SCALING}
    plain = MixedPrecisionConfig()
    for each in fields(precision):
        value = getattr(precision, each.name)
        if each.name in KEYS and each.name not in values and value != getattr(plain, each.name):
            values[each.name] = raw.value(value, f"{path}.{each.name}", path)
        elif each.name in _NARROW and value != getattr(plain, each.name):
            problems.append(
                f"{path}.{each.name} {show_value(value)} ({raw.source(f'{path}.{each.name}', path)}) is not implemented yet: "
                f"{_NARROW[each.name]}; choose bf16_mixed, fp16_mixed or fp32."
            )
    return values


def _from_model(raw: Raw, problems: list[str]) -> dict[str, Value]:
    """Return what the model and the optimizer say where there is no `precision_config`."""
    model = raw.config.model
    dtype = "bf16" if model.bf16 else "fp16" if model.fp16 else "fp32"
    twins = {"model.params_dtype": dtype, "optimizer.params_dtype": dtype}
    twins |= {f"optimizer.{name}": getattr(model, name) for name in ("bf16", "fp16")}
    for path, value in twins.items():
        if raw.is_chosen(path) and raw.at(path) != value:
            problems.append(f"{raw.where(path)} must be {show_value(value)}, as model.bf16 and model.fp16 say.")
    values = {name: raw.value(bool(raw.at(f"model.{name}")), f"model.{name}") for name in ("bf16", "fp16")}
    values |= _sums(dtype, raw.value(raw.config.ddp.grad_reduce_in_fp32, "ddp.grad_reduce_in_fp32"))
    return values | {name: raw.value(raw.at(f"optimizer.{name}"), f"optimizer.{name}") for name in _SCALING}


def _sums(dtype: str, in_fp32: Value) -> dict[str, Value]:
    """Return the flat value that says in what gradients are summed; fp32 weights leave no choice."""
    if dtype == "bf16":
        return {"grad_reduce_in_bf16": replace(in_fp32, value=not in_fp32.value)}
    return {"accumulate_allreduce_grads_in_fp32": in_fp32} if dtype == "fp16" else {}


def _check_twins(raw: Raw, precision: MixedPrecisionConfig, dtype: str, problems: list[str]) -> None:
    """What `precision_config` decides is not said otherwise of the model, the optimizer or the gradients."""
    dtypes = {"bf16": precision.bf16, "fp16": precision.fp16, "params_dtype": dtype}
    twins = {f"{part}.{name}": (name, value) for part in ("model", "optimizer") for name, value in dtypes.items()}
    twins |= {f"optimizer.{name}": (name, getattr(precision, name)) for name in _SCALING}
    twins["ddp.grad_reduce_in_fp32"] = ("grad_reduce_in_fp32", precision.grad_reduce_in_fp32)
    for path, (name, value) in twins.items():
        if raw.is_chosen(path) and raw.at(path) != value:
            right = f"mixed_precision.{name}" if name in (*_SCALING, "grad_reduce_in_fp32") else "precision_config"
            problems.append(
                f"{raw.where(path)} must be {show_value(value)}: precision_config ({raw.source('mixed_precision')}) says so; "
                f"set {right} instead."
            )


def _check_dtypes(raw: Raw, precision: MixedPrecisionConfig, dtype: str, problems: list[str]) -> None:
    """Messages between stages and weights have one dtype."""
    asked = {
        "mixed_precision.params_dtype": precision.params_dtype,
        "mixed_precision.pipeline_dtype": precision.pipeline_dtype,
        "model.pipeline_dtype": raw.config.model.pipeline_dtype,
    }
    for path, name in asked.items():
        if name is not None and _DTYPES.get(str(name)) != dtype:
            word = "pipeline_dtype" if path.endswith("pipeline_dtype") else "params_dtype"
            problems.append(
                f"{word} {name} ({raw.source(path, 'mixed_precision')}) must be {dtype} or null: weights, "
                "activations and messages between stages have the dtype of precision_config."
            )
