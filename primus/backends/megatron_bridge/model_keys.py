"""A model under Megatron-Bridge's names, and the same as flat Megatron keys.

`model_from_keys` and `keys_from_model` are the names to use; each undoes the other. Most names are the same; those that differ
stand in one table.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.container import ModelProvider

__all__ = ["KEY_OF_FIELD", "keys_from_model", "model_from_keys", "unstated"]

_RENAMED = {
    "num_moe_experts": "num_experts",
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "rope_scaling": "use_rope_scaling",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}

KEY_OF_FIELD: Mapping[str, str] = {
    each.name: key for each in fields(ModelProvider) if (key := _RENAMED.get(each.name, each.name)) in KEYS
}
"""The flat key of each field that has one and means the same by it."""

_FIELD_OF_KEY = {key: name for name, key in KEY_OF_FIELD.items()}

_ACTIVATIONS = {
    (True, "silu"): "swiglu",
    (True, "quick_gelu"): "quick_geglu",
    (False, "gelu_tanh"): "openai_gelu",
    (False, "squared_relu"): "squared_relu",
}
"""Gate and function to the switch of the flat keys."""
_PLAIN = (False, "gelu")
"""What it is without any of them."""

_SAID_OTHERWISE = (
    "group_query_attention",
    "add_position_embedding",
    "use_rotary_position_embeddings",
    "untie_embeddings_and_output_weights",
    *_ACTIVATIONS.values(),
)
"""Keys that are not fields one to one."""


def model_from_keys(keys: Mapping[str, Any]) -> ModelProvider:
    """Return the model that flat keys state; KeyError for one that states something else."""
    model = ModelProvider()
    for key, value in keys.items():
        if key not in _SAID_OTHERWISE:
            setattr(model, _FIELD_OF_KEY[key], value)
    model.share_embeddings_and_output_weights = not keys["untie_embeddings_and_output_weights"]
    if not keys["group_query_attention"]:
        model.num_query_groups = None
    switch = next((switch for switch in _ACTIVATIONS.items() if keys.get(switch[1])), (_PLAIN, ""))
    model.gated_linear_unit, model.activation_func = switch[0]
    if keys.get("use_rotary_position_embeddings"):
        model.position_embedding_type = "rope"
    return model


def unstated(model: ModelProvider) -> str | None:
    """Return what is wrong with an activation that no key states; None if one does."""
    activation = (model.gated_linear_unit, model.activation_func)
    if activation in _ACTIVATIONS or activation == _PLAIN:
        return None
    there = [name for gated, name in (_PLAIN, *_ACTIVATIONS) if gated == model.gated_linear_unit]
    return (
        f"model.activation_func {model.activation_func} with model.gated_linear_unit {str(model.gated_linear_unit).lower()} is "
        f"not known; with that there are {', '.join(there)}"
    )


def keys_from_model(model: ModelProvider) -> dict[str, Any]:
    """Return the flat keys that state a model; of an activation that is `unstated`, a plain GELU."""
    keys = {key: getattr(model, name) for name, key in KEY_OF_FIELD.items()}
    activation = (model.gated_linear_unit, model.activation_func)
    keys |= {switch: switch == _ACTIVATIONS.get(activation) for switch in _ACTIVATIONS.values()}
    return keys | {
        "untie_embeddings_and_output_weights": not model.share_embeddings_and_output_weights,
        "group_query_attention": model.num_query_groups is not None,
        "add_position_embedding": model.position_embedding_type == "learned_absolute",
    }
