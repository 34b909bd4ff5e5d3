"""Llama, Qwen2 and Qwen3 of the transformers library, with random weights, give the same logits."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "truncate": False,
}


def plain(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


LlamaConfig, Qwen2Config, Qwen3Config = transformers.LlamaConfig, transformers.Qwen2Config, transformers.Qwen3Config
CASES = {
    "llama": LlamaConfig(**SIZES, rope_parameters=plain(10000.0), tie_word_embeddings=False),
    "llama-linear": LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    "llama3.1": LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
    "llama-yarn": LlamaConfig(**SIZES, rope_parameters=YARN),
    "qwen2": Qwen2Config(**SIZES, rope_parameters=plain(1e6), tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, rope_parameters=plain(1e6), tie_word_embeddings=False),
}


def config_of(hf: Any) -> ModelConfig:
    rope = hf.rope_parameters
    kind = rope["rope_type"]
    return ModelConfig(
        num_layers=hf.num_hidden_layers,
        hidden_size=hf.hidden_size,
        ffn_hidden_size=hf.intermediate_size,
        seq_length=40,
        vocab_size=hf.vocab_size,
        norm_epsilon=hf.rms_norm_eps,
        tie_embeddings=hf.tie_word_embeddings,
        attention=AttentionConfig(
            num_attention_heads=hf.num_attention_heads,
            num_query_groups=hf.num_key_value_heads,
            kv_channels=hf.head_dim,
            add_qkv_bias=hf.model_type == "qwen2",
            qk_norm="model" if hf.model_type == "qwen3" else "none",
        ),
        position=PositionConfig(
            type="yarn" if kind == "yarn" else "rope",
            max_position_embeddings=64,
            rotary_base=rope["rope_theta"],
            use_rope_scaling=kind == "llama3",
            rope_scaling_factor=rope.get("factor", 8.0),
            interpolation_factor=rope["factor"] if kind == "linear" else None,
            yarn_scaling_factor=rope.get("factor", 1.0),
            yarn_original_max_position_embeddings=rope.get("original_max_position_embeddings", 4096),
            yarn_mscale=rope.get("mscale"),
            yarn_mscale_all_dim=rope.get("mscale_all_dim"),
            yarn_correction_range_round_to_int=rope.get("truncate", True),
        ),
        init=InitConfig(perform=False),
    )


def grouped(state: dict[str, Tensor], layer: str, part: str, config: ModelConfig) -> Tensor:
    """Order the rows of separate projections by group: its query heads, its key head, its value head."""
    groups, channels = config.attention.num_query_groups, config.attention.kv_channels
    blocks = [state[f"{layer}self_attn.{x}_proj.{part}"].unflatten(0, (groups, -1, channels)) for x in "qkv"]
    return torch.cat(blocks, dim=1).flatten(0, 2)


def converted(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Rename and fuse the library's weights."""
    weights = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": state["model.norm.weight"],
    }
    if not config.tie_embeddings:
        weights["output_layer.weight"] = state["lm_head.weight"]
    for number in range(config.num_layers):
        here, there = f"decoder.layers.{number}.", f"model.layers.{number}."
        gate, up = (state[f"{there}mlp.{x}_proj.weight"] for x in ("gate", "up"))
        weights |= {
            f"{here}input_layernorm.weight": state[f"{there}input_layernorm.weight"],
            f"{here}pre_mlp_layernorm.weight": state[f"{there}post_attention_layernorm.weight"],
            f"{here}self_attention.linear_qkv.weight": grouped(state, there, "weight", config),
            f"{here}self_attention.linear_proj.weight": state[f"{there}self_attn.o_proj.weight"],
            f"{here}mlp.linear_fc1.weight": torch.cat((gate, up)),
            f"{here}mlp.linear_fc2.weight": state[f"{there}mlp.down_proj.weight"],
        }
        if config.attention.add_qkv_bias:
            weights[f"{here}self_attention.linear_qkv.bias"] = grouped(state, there, "bias", config)
        if config.attention.qk_norm == "model":
            for x in "qk":
                weights[f"{here}self_attention.{x}_layernorm.weight"] = state[f"{there}self_attn.{x}_norm.weight"]
    return weights


def build(hf: Any, weights: dict[str, Tensor]) -> GPTModel:
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config_of(hf), mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.zero_()
            parameter[: weights[name].shape[0]].copy_(weights[name])
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_the_library(name: str) -> None:
    hf = CASES[name]
    torch.manual_seed(1)
    library = transformers.AutoModelForCausalLM.from_config(hf, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in library.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        tokens = torch.randint(hf.vocab_size, (2, 40))
        expected = library(tokens).logits
        model = build(hf, converted(library.state_dict(), config_of(hf)))
        actual = model(tokens, torch.arange(40).expand(2, 40))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert float(expected.std()) > 1.0
