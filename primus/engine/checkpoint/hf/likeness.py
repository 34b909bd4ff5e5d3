"""Whether two models are the same function of their weights: what of `ModelConfig` bears on that, made comparable."""

from collections.abc import Iterator, Mapping
from typing import Any

from primus.engine.config.model import ModelConfig
from primus.engine.config.serialize import to_dict

__all__ = ["differences"]

_TRAINING = (
    "seq_length",
    "make_vocab_size_divisible_by",
    "hidden_dropout",
    "fp32_residual_connection",
    "init",
    "fusion",
    "parallel",
    "tp_overlap",
    "pipeline",
    "recompute",
    "mtp.loss_scaling_factor",
    "position.max_position_embeddings",
    "attention.attention_dropout",
    "attention.backend",
    "attention.softmax_in_fp32",
    "attention.query_key_layer_scaling",
    "moe.shared_expert_overlap",
    "moe.token_dispatcher",
    "moe.router_dtype",
    "moe.router_bias_update_rate",
    "moe.router_load_balancing_type",
    "moe.aux_loss_coeff",
    "moe.z_loss_coeff",
    "moe.input_jitter_eps",
    "moe.expert_capacity_factor",
    "moe.token_drop_policy",
    "moe.pad_expert_input_to_capacity",
    "moe.per_layer_logging",
    "moe.router_force_load_balancing",
    "moe.grouped_gemm",
    "moe.overlaps_exchange",
    "moe.use_upcycling",
)
"""How a model is trained, divided and computed, and how long its texts may be."""
_SAME = {
    "position.interpolation_factor": 1.0,
    "moe.router_topk_scaling_factor": 1.0,
    "moe.router_num_groups": 1,
    "moe.router_group_topk": 1,
    "moe.router_logit_softcapping": 0.0,
}
"""What None means."""
_SHOWN = 60
"""Characters of a value: that of a list of layers runs on."""


def differences(one: ModelConfig, other: ModelConfig) -> list[tuple[str, Any, Any]]:
    """Return the fields in which two models differ as functions, with both values; an open vocabulary fits any."""
    first, second = _function(one), _function(other)
    paths = dict.fromkeys((*first, *second))
    found = [(path, first.get(path), second.get(path)) for path in paths if first.get(path) != second.get(path)]
    return [(path, _short(a), _short(b)) for path, a, b in found if path != "vocab_size" or None not in (a, b)]


def _short(value: Any) -> Any:
    text = str(value)
    return value if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _function(model: ModelConfig) -> dict[str, Any]:
    idle = (*_TRAINING, *_idle(model))
    leaves = dict(_leaves(to_dict(model), ""))
    kept = {path: value for path, value in leaves.items() if not any(f"{path}.".startswith(f"{part}.") for part in idle)}
    return {path: _SAME[path] if value is None and path in _SAME else value for path, value in kept.items()}


def _idle(model: ModelConfig) -> Iterator[str]:
    """Yield the fields that have no meaning in a model."""
    a, m, p = model.attention, model.moe, model.position
    if a.mla.enabled:
        yield from ("attention.kv_channels", "attention.num_query_groups")
    else:
        yield "attention.mla"
    if not m.layers:
        yield "moe"
    elif len(m.layers) == model.num_layers:
        yield "ffn_hidden_size"
    if m.router_score_function != "softmax":
        yield "moe.router_pre_softmax"
    if m.router_group_topk is None:
        yield "moe.router_num_groups"
    # Which layers there are is compared; no family has these.
    yield from ("mamba", "delta")
    if not p.temperature_scale:
        yield "position.temperature_floor"
    if p.type != "yarn":
        yield from (name for name in _fields("position", p) if name.startswith("position.yarn_"))
    if not p.use_rope_scaling:
        yield from ("position.rope_scaling_factor", "position.rope_scaling_context")


def _fields(prefix: str, part: Any) -> Iterator[str]:
    return (f"{prefix}.{name}" for name in to_dict(part))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value
