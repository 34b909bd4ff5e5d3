"""`config.json` of a model of ours: its family, and what the transformers library wants to know of it."""

from typing import Any

from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.read import model_of
from primus.engine.config.model import ModelConfig
from primus.errors import InputError

__all__ = ["config_json", "described", "family_of"]

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}


def described(model: ModelConfig, dtype: str) -> tuple[str, dict[str, Any]]:
    """Return the family that a model belongs to and its `config.json`; InputError lists what the family cannot say of it.

    What is written is read again: a model that comes back as another function is none of the family.
    """
    family = family_of(model)
    content = config_json(model, family, dtype)
    _, again = model_of(content, f"a model of the family {family}")
    problems = [
        f"{path} is {ours}: a {family}, the nearest family, has {theirs}" for path, ours, theirs in differences(model, again)
    ]
    if problems:
        raise InputError(problems)
    return family, content


def family_of(model: ModelConfig) -> str:
    """Return the family that is nearest to the model."""
    a = model.attention
    if a.mla.enabled:
        return "deepseek_v3"
    if a.sinks:
        return "gpt_oss"
    if model.moe.layers:
        return "qwen3_moe" if a.qk_norm == "model" else "mixtral"
    if a.qk_norm == "model":
        return "qwen3"
    return "qwen2" if a.add_qkv_bias else "llama"


def config_json(model: ModelConfig, family: str, dtype: str) -> dict[str, Any]:
    """Return the content of `config.json`."""
    a = model.attention
    return {
        "architectures": [_CLASSES[family]],
        "model_type": family,
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": _feed_forward_width(model, family),
        "num_attention_heads": a.num_attention_heads,
        "num_key_value_heads": a.num_attention_heads if a.mla.enabled else a.num_query_groups,
        "head_dim": a.mla.qk_pos_emb_head_dim if a.mla.enabled else a.kv_channels,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_epsilon,
        "initializer_range": model.init.method_std,
        "attention_dropout": a.attention_dropout,
        "attention_bias": family == "gpt_oss",
        "max_position_embeddings": model.position.max_position_embeddings,
        "tie_word_embeddings": model.tie_embeddings,
        "vocab_size": model.vocab_size,
        "torch_dtype": dtype,
        **_rotation(model),
        **(_window(model) if a.window is not None and not a.mla.enabled else {}),
        **(_experts(model, family) if model.moe.layers else {}),
        **(_latent(model) if a.mla.enabled else {}),
        **({"first_k_dense_replace": model.num_layers} if a.mla.enabled and not model.moe.layers else {}),
    }


def _rotation(model: ModelConfig) -> dict[str, Any]:
    """Return the rotation as older and newer versions of the library write it."""
    p = model.position
    scaling: dict[str, Any] | None = None
    if p.type == "yarn":
        scaling = {
            "rope_type": "yarn",
            "factor": p.yarn_scaling_factor,
            "original_max_position_embeddings": p.yarn_original_max_position_embeddings,
            "beta_fast": p.yarn_beta_fast,
            "beta_slow": p.yarn_beta_slow,
            "truncate": p.yarn_correction_range_round_to_int,
        }
        if p.yarn_mscale and p.yarn_mscale_all_dim:
            scaling |= {"mscale": p.yarn_mscale, "mscale_all_dim": p.yarn_mscale_all_dim}
    elif p.use_rope_scaling:
        scaling = {
            "rope_type": "llama3",
            "factor": p.rope_scaling_factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": p.rope_scaling_context,
        }
    elif p.interpolation_factor not in (None, 1, 1.0):
        scaling = {"rope_type": "linear", "factor": p.interpolation_factor}
    parameters = {"rope_theta": p.rotary_base, **(scaling or {"rope_type": "default"})}
    return {"rope_theta": p.rotary_base, "rope_scaling": scaling, "rope_parameters": parameters}


def _feed_forward_width(model: ModelConfig, family: str) -> int:
    """Families without dense layers have one width, that of an expert."""
    width = model.moe.ffn_hidden_size if family in ("mixtral", "gpt_oss") else None
    return width or model.ffn_hidden_size


def _window(model: ModelConfig) -> dict[str, Any]:
    full = model.attention.full_layers
    kinds = ["full_attention" if number in full else "sliding_attention" for number in range(model.num_layers)]
    return {"sliding_window": model.attention.window, "use_sliding_window": True, "layer_types": kinds}


def _experts(model: ModelConfig, family: str) -> dict[str, Any]:
    m = model.moe
    assert m.num_experts is not None
    width = m.ffn_hidden_size or model.ffn_hidden_size
    if family == "mixtral":
        return {"num_local_experts": m.num_experts, "num_experts_per_tok": m.router_topk}
    if family == "gpt_oss":
        return {
            "num_local_experts": m.num_experts,
            "num_experts_per_tok": m.router_topk,
            "swiglu_limit": model.activation_clamp,
        }
    if family == "qwen3_moe":
        dense = [number for number in range(model.num_layers) if number not in m.layers]
        return {
            "num_experts": m.num_experts,
            "num_experts_per_tok": m.router_topk,
            "moe_intermediate_size": width,
            "norm_topk_prob": not m.router_pre_softmax,
            "decoder_sparse_step": 1,
            "mlp_only_layers": dense,
        }
    shared = m.shared_expert_intermediate_size or 0
    return {
        "n_routed_experts": m.num_experts,
        "n_shared_experts": shared // width,
        "num_experts_per_tok": m.router_topk,
        "moe_intermediate_size": width,
        "first_k_dense_replace": m.layers[0],
        "moe_layer_freq": 1,
        "n_group": m.router_num_groups or 1,
        "topk_group": m.router_group_topk or 1,
        "routed_scaling_factor": m.router_topk_scaling_factor or 1.0,
        "norm_topk_prob": True,
        "scoring_func": m.router_score_function,
        "topk_method": "noaux_tc",
    }


def _latent(model: ModelConfig) -> dict[str, Any]:
    mla = model.attention.mla
    return {
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_head_dim,
        "qk_rope_head_dim": mla.qk_pos_emb_head_dim,
        "v_head_dim": mla.v_head_dim,
        "rope_interleave": True,
        "num_nextn_predict_layers": model.mtp.num_layers,
    }
