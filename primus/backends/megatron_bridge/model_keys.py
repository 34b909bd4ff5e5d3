"""A model under Megatron-Bridge's names, and the same as flat Megatron keys.

`model_from_keys` and `keys_from_model` are the names to use; each undoes the other. Most names are the same; those that differ
stand in one table.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from primus.backends.megatron.keys import KEYS
from primus.backends.megatron_bridge.container import ModelProvider

__all__ = ["KEY_OF_FIELD", "keys_from_model", "model_from_keys"]

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
"""Gate and function to the switch of the flat keys; without any of them it is a plain GELU."""

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
    switch = next((switch for switch in _ACTIVATIONS.items() if keys.get(switch[1])), ((False, "gelu"), ""))
    model.gated_linear_unit, model.activation_func = switch[0]
    if keys.get("use_rotary_position_embeddings"):
        model.position_embedding_type = "rope"
    return model


def keys_from_model(model: ModelProvider) -> dict[str, Any]:
    """Return the flat keys that state a model; ValueError for an activation that no key states."""
    keys = {key: getattr(model, name) for name, key in KEY_OF_FIELD.items()}
    activation = (model.gated_linear_unit, model.activation_func)
    if activation not in _ACTIVATIONS and activation != (False, "gelu"):
        gated = "gated " if model.gated_linear_unit else ""
        raise ValueError(f"activation_func {model.activation_func}: there is no {gated}activation of that name")
    keys |= {switch: switch == _ACTIVATIONS.get(activation) for switch in _ACTIVATIONS.values()}
    return keys | {
        "untie_embeddings_and_output_weights": not model.share_embeddings_and_output_weights,
        "group_query_attention": model.num_query_groups is not None,
        "add_position_embedding": model.position_embedding_type == "learned_absolute",
    }
