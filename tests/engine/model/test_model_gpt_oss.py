"""GPT-OSS of the transformers library, with random weights, gives the same logits: sinks, windows, biases, a clamped gate."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from oracle import check_transformers
from torch import Tensor

LAYERS, HEADS, GROUPS, EXPERTS = 2, 4, 2, 4
HF = transformers.GptOssConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=24,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=GROUPS,
    head_dim=8,
    num_local_experts=EXPERTS,
    num_experts_per_tok=2,
    sliding_window=5,
    layer_types=["sliding_attention", "full_attention"],
    max_position_embeddings=64,
    initializer_range=0.5,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "truncate": True,
    },
    swiglu_limit=1.0,
    attn_implementation="eager",
)
KEYS: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": 32,
    "num_attention_heads": HEADS,
    "group_query_attention": True,
    "num_query_groups": GROUPS,
    "kv_channels": 8,
    "normalization": "RMSNorm",
    "norm_epsilon": HF.rms_norm_eps,
    "position_embedding_type": "yarn",
    "rotary_scaling_factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "use_sink_attention": True,
    "sink_sliding_window": 5,
    "num_experts": EXPERTS,
    "moe_ffn_hidden_size": 24,
    "moe_router_topk": 2,
    "moe_router_load_balancing_type": "none",
    "add_bias_linear": True,
    "swiglu": False,
    "quick_geglu": True,
    "activation_func_clamp_value": 1.0,
    "glu_linear_offset": 1.0,
    "vocab_size": 96,
    "make_vocab_size_divisible_by": 1,
    "max_position_embeddings": 64,
}


def grouped(state: dict[str, Tensor], layer: str, part: str) -> Tensor:
    """Order the rows of separate projections by group."""
    blocks = [state[f"{layer}self_attn.{x}_proj.{part}"].unflatten(0, (GROUPS, -1, 8)) for x in "qkv"]
    return torch.cat(blocks, dim=1).flatten(0, 2)


def converted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename and fuse the library's weights, whose gate and linear half alternate."""
    weights = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": state["lm_head.weight"],
    }
    for number in range(LAYERS):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        first = state[f"{there}mlp.experts.gate_up_proj"].mT, state[f"{there}mlp.experts.gate_up_proj_bias"]
        weights |= {
            f"{here}input_layernorm.weight": state[f"{there}input_layernorm.weight"],
            f"{here}pre_mlp_layernorm.weight": state[f"{there}post_attention_layernorm.weight"],
            f"{here}self_attention.linear_qkv.weight": grouped(state, there, "weight"),
            f"{here}self_attention.linear_qkv.bias": grouped(state, there, "bias"),
            f"{here}self_attention.linear_proj.weight": state[f"{there}self_attn.o_proj.weight"],
            f"{here}self_attention.linear_proj.bias": state[f"{there}self_attn.o_proj.bias"],
            f"{here}self_attention.core_attention.softmax_offset": state[f"{there}self_attn.sinks"],
            f"{here}mlp.router.weight": state[f"{there}mlp.router.weight"],
            f"{here}mlp.router.bias": state[f"{there}mlp.router.bias"],
            f"{here}mlp.experts.linear_fc1.weight": torch.cat((first[0][:, ::2], first[0][:, 1::2]), dim=1),
            f"{here}mlp.experts.linear_fc1.bias": torch.cat((first[1][:, ::2], first[1][:, 1::2]), dim=1),
            f"{here}mlp.experts.linear_fc2.weight": state[f"{there}mlp.experts.down_proj"].mT,
            f"{here}mlp.experts.linear_fc2.bias": state[f"{there}mlp.experts.down_proj_bias"],
        }
    return weights


@pytest.mark.filterwarnings("ignore")
def test_logits_equal_transformers(tmp_path: Path) -> None:
    check_transformers(tmp_path, transformers.GptOssForCausalLM(HF), KEYS, converted, std=0.4, rtol=1e-3, atol=2e-4)
