"""A model as a preset: the flat keys from which the front door makes it again.

For models that come from elsewhere than from a preset, such as an imported checkpoint; those keys alone that its families use.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from primus.engine.config.model import ModelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.position import PositionConfig

__all__ = ["model_keys", "overridden_keys", "preset_text"]


_OF_MODULES = ("use_sink_attention",)
"""Keys of models among those of the presets of modules."""


def model_keys(model: ModelConfig) -> dict[str, Any]:
    """Return the keys of a model of RMSNorm and a gated activation, dense or sparse."""
    a, is_swiglu = model.attention, model.activation == "swiglu"
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        "num_attention_heads": a.num_attention_heads,
        **(_latent(model) if a.mla.enabled else _heads(model)),
        **_scores(model),
        "qk_layernorm": a.qk_norm == "model",
        "add_qkv_bias": a.add_qkv_bias,
        "add_bias_linear": model.add_bias_linear,
        "swiglu": is_swiglu,
        **({} if is_swiglu else _clamped_gate(model)),
        "normalization": "RMSNorm",
        "norm_epsilon": model.norm_epsilon,
        "untie_embeddings_and_output_weights": not model.tie_embeddings,
        **_positions(model.position, of_latents=a.mla.enabled),
        **(_experts(model.moe, model.num_layers) if model.moe.layers else {}),
        **({"mtp_num_layers": model.mtp.num_layers} if model.mtp.num_layers else {}),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def overridden_keys(model: ModelConfig) -> dict[str, Any]:
    """Return those of the keys that a model's preset says in vain: the module's preset has them, and goes before."""
    return {key: value for key, value in model_keys(model).items() if key in _OF_MODULES}


def preset_text(model: ModelConfig, *, opening: str, tokenizer: str | None) -> str:
    """Return a preset under a comment; `tokenizer` is a folder of a Hugging Face tokenizer."""
    apart = overridden_keys(model)
    keys = {key: value for key, value in model_keys(model).items() if key not in apart}
    if tokenizer is not None:
        keys |= {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": tokenizer}
    lines = yaml.safe_dump(_plain(keys), sort_keys=False)
    overrides = f"\n# To stand under overrides: {apart}" if apart else ""
    return f"# {opening}{overrides}\nextends:\n  - primus/configs/models/megatron/language_model.yaml\n\n{lines}"


def _heads(model: ModelConfig) -> dict[str, Any]:
    a = model.attention
    return {"group_query_attention": True, "num_query_groups": a.num_query_groups, "kv_channels": a.kv_channels}


def _scores(model: ModelConfig) -> dict[str, Any]:
    a, keys = model.attention, dict[str, Any]()
    if a.sinks:
        keys["use_sink_attention"] = True
    if a.window is not None:
        keys["window_size"] = [a.window - 1, 0]
        keys["window_attn_skip_freq"] = [int(number not in a.full_layers) for number in range(model.num_layers)]
    return keys


def _clamped_gate(model: ModelConfig) -> dict[str, Any]:
    return {
        "quick_geglu": True,
        "activation_func_clamp_value": model.activation_clamp,
        "glu_linear_offset": model.glu_linear_offset,
    }


def _latent(model: ModelConfig) -> dict[str, Any]:
    mla = model.attention.mla
    return {
        "multi_latent_attention": True,
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_head_dim,
        "qk_pos_emb_head_dim": mla.qk_pos_emb_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _positions(p: PositionConfig, *, of_latents: bool) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "position_embedding_type": "rope" if of_latents else p.type,
        "max_position_embeddings": p.max_position_embeddings,
        "rotary_base": p.rotary_base,
    }
    if of_latents:
        keys["rope_type"] = p.type
    if p.type == "yarn":
        keys |= {
            "rotary_scaling_factor": p.yarn_scaling_factor,
            "original_max_position_embeddings": p.yarn_original_max_position_embeddings,
            "mscale": p.yarn_mscale,
            "mscale_all_dim": p.yarn_mscale_all_dim,
            "yarn_correction_range_round_to_int": p.yarn_correction_range_round_to_int,
        }
    if p.use_rope_scaling:
        keys |= {
            "use_rope_scaling": True,
            "rope_scaling_factor": p.rope_scaling_factor,
            "original_max_position_embeddings": p.rope_scaling_context,
        }
    if p.interpolation_factor is not None:
        keys["rotary_seq_len_interpolation_factor"] = p.interpolation_factor
    return keys


def _experts(m: MoEConfig, num_layers: int) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "num_experts": m.num_experts,
        "moe_layer_freq": [int(number in m.layers) for number in range(num_layers)],
        "moe_ffn_hidden_size": m.ffn_hidden_size,
        "moe_router_topk": m.router_topk,
        "moe_router_score_function": m.router_score_function,
        "moe_router_pre_softmax": m.router_pre_softmax,
        "moe_router_dtype": "fp32",
    }
    if m.shared_expert_intermediate_size is not None:
        keys["moe_shared_expert_intermediate_size"] = m.shared_expert_intermediate_size
    if m.router_group_topk is not None:
        keys |= {"moe_router_num_groups": m.router_num_groups, "moe_router_group_topk": m.router_group_topk}
    if m.router_topk_scaling_factor is not None:
        keys["moe_router_topk_scaling_factor"] = m.router_topk_scaling_factor
    if m.router_enable_expert_bias:
        keys |= {"moe_router_enable_expert_bias": True, "moe_router_load_balancing_type": "none"}
    return keys


def _plain(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Tell whole numbers as such: YAML would write them with an exponent or a point."""
    return {key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in keys.items()}
