"""Gemma 2, Qwen3-Next and MiniMax-M2 of the transformers library, with random weights, give the same logits.

Norms behind each half, windows and both soft caps; a gate on the heads' output; the norm of all heads together.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from oracle import check_transformers
from torch import Tensor

LAYERS, HEADS, GROUPS = 2, 4, 2
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "attn_implementation": "eager",
}
KEYS: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": HEADS,
    "group_query_attention": True,
    "num_query_groups": GROUPS,
    "kv_channels": 8,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-6,
    "position_embedding_type": "rope",
    "swiglu": True,
    "vocab_size": 96,
    "make_vocab_size_divisible_by": 1,
    "max_position_embeddings": 64,
}


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        **SIZES,
        hidden_activation="silu",
        query_pre_attn_scalar=8,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention"],
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return transformers.Gemma2ForCausalLM(config)


def qwen3_next() -> Any:
    config = transformers.Qwen3NextConfig(
        **SIZES,
        layer_types=["full_attention"] * LAYERS,
        mlp_only_layers=[0, 1],
        num_experts=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    return transformers.Qwen3NextForCausalLM(config)


def minimax_m2() -> Any:
    config = transformers.MiniMaxM2Config(
        **SIZES,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    return transformers.MiniMaxM2ForCausalLM(config)


GEMMA2_KEYS = {
    "apply_layernorm_1p": True,
    "post_self_attn_layernorm": True,
    "post_mlp_layernorm": True,
    "window_size": [4, 0],
    "window_attn_skip_freq": 2,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
QWEN3_NEXT_KEYS = {"apply_layernorm_1p": True, "attention_output_gate": True, "qk_layernorm": True, "rotary_percent": 0.5}
MINIMAX_M2_KEYS = {
    "qk_layernorm": True,
    "qk_norm_type": "per_layer",
    "rotary_percent": 0.5,
    "num_experts": 4,
    "moe_ffn_hidden_size": 48,
    "moe_router_topk": 2,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_load_balancing_type": "none",
}

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "gemma2": (gemma2, GEMMA2_KEYS),
    "qwen3-next": (qwen3_next, QWEN3_NEXT_KEYS),
    "minimax-m2": (minimax_m2, MINIMAX_M2_KEYS),
}
NORMS = {
    "input_layernorm": "input_layernorm",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "self_attention.q_layernorm": "self_attn.q_norm",
    "self_attention.k_layernorm": "self_attn.k_norm",
}
NORMS_OF_GEMMA2 = {
    "input_layernorm": "input_layernorm",
    "post_self_attn_layernorm": "post_attention_layernorm",
    "pre_mlp_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}


def converted(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """Rename and fuse the library's weights; Gemma multiplies embedded words by the root of their width."""
    scale = 32**0.5 if name == "gemma2" else 1.0
    weights = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"] * scale,
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": state["lm_head.weight"],
    }
    for number in range(LAYERS):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        norms = NORMS_OF_GEMMA2 if name == "gemma2" else NORMS
        weights |= {f"{here}{ours}.weight": state[f"{there}{theirs}.weight"] for ours, theirs in norms.items()}
        weights |= {
            f"{here}self_attention.linear_qkv.weight": projection(state, there),
            f"{here}self_attention.linear_proj.weight": state[f"{there}self_attn.o_proj.weight"],
        }
        if name == "minimax-m2":
            weights |= {
                f"{here}mlp.router.weight": state[f"{there}mlp.gate.weight"],
                f"{here}mlp.router.expert_bias": state[f"{there}mlp.e_score_correction_bias"],
                f"{here}mlp.experts.linear_fc1.weight": state[f"{there}mlp.experts.gate_up_proj"],
                f"{here}mlp.experts.linear_fc2.weight": state[f"{there}mlp.experts.down_proj"],
            }
            continue
        gate, up = (state[f"{there}mlp.{x}_proj.weight"] for x in ("gate", "up"))
        weights |= {
            f"{here}mlp.linear_fc1.weight": torch.cat((gate, up)),
            f"{here}mlp.linear_fc2.weight": state[f"{there}mlp.down_proj.weight"],
        }
    return weights


def projection(state: dict[str, Tensor], layer: str) -> Tensor:
    """Order the rows by group: its query heads, its gates, which the library has behind each head, its key and value head."""
    query, key, value = (state[f"{layer}self_attn.{x}_proj.weight"].unflatten(0, (GROUPS, -1, 8)) for x in "qkv")
    if query.shape[1] > HEADS // GROUPS:
        query = torch.cat((query[:, ::2], query[:, 1::2]), dim=1)
    return torch.cat((query, key, value), dim=1).flatten(0, 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    library, keys = CASES[name]
    check_transformers(tmp_path, library(), {**KEYS, **keys}, lambda state: converted(state, name))
