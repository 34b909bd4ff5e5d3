"""Llama 4 of the transformers library, with random weights, gives the same logits: chunks, layers that rotate nothing, tempered
queries, and queries and keys of one length where they are rotated."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from oracle import check_transformers
from torch import Tensor

LAYERS, HEADS, GROUPS = 4, 4, 2
HF = transformers.Llama4TextConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size_mlp=48,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=GROUPS,
    head_dim=8,
    max_position_embeddings=64,
    moe_layers=[],
    no_rope_layer_interval=2,
    attention_chunk_size=6,
    attn_temperature_tuning=True,
    floor_scale=4,
    attn_scale=0.3,
    use_qk_norm=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    pad_token_id=None,
    attn_implementation="eager",
)
KEYS: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": 32,
    "ffn_hidden_size": 48,
    "num_attention_heads": HEADS,
    "group_query_attention": True,
    "num_query_groups": GROUPS,
    "kv_channels": 8,
    "normalization": "RMSNorm",
    "norm_epsilon": HF.rms_norm_eps,
    "position_embedding_type": "rope",
    "rotary_interleaved": True,
    "no_rope_freq": 2,
    "attention_chunk_size": 6,
    "attn_temperature_scale": 0.3,
    "attn_temperature_floor": 4,
    "qk_l2_norm": True,
    "swiglu": True,
    "vocab_size": 96,
    "make_vocab_size_divisible_by": 1,
    "max_position_embeddings": 64,
}


def converted(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename and fuse the library's weights."""
    weights = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": state["lm_head.weight"],
    }
    for number in range(LAYERS):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        blocks = [state[f"{there}self_attn.{x}_proj.weight"].unflatten(0, (GROUPS, -1, 8)) for x in "qkv"]
        gate, up = (state[f"{there}feed_forward.{x}_proj.weight"] for x in ("gate", "up"))
        weights |= {
            f"{here}input_layernorm.weight": state[f"{there}input_layernorm.weight"],
            f"{here}pre_mlp_layernorm.weight": state[f"{there}post_attention_layernorm.weight"],
            f"{here}self_attention.linear_qkv.weight": torch.cat(blocks, dim=1).flatten(0, 2),
            f"{here}self_attention.linear_proj.weight": state[f"{there}self_attn.o_proj.weight"],
            f"{here}mlp.linear_fc1.weight": torch.cat((gate, up)),
            f"{here}mlp.linear_fc2.weight": state[f"{there}feed_forward.down_proj.weight"],
        }
    return weights


@pytest.mark.filterwarnings("ignore")
def test_logits_equal_transformers(tmp_path: Path) -> None:
    check_transformers(tmp_path, transformers.Llama4ForCausalLM(HF), KEYS, converted)
