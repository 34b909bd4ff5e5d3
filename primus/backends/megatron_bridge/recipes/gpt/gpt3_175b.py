"""GPT-3."""

from primus.backends.megatron_bridge.recipes.finetuning import degrees
from primus.backends.megatron_bridge.recipes.llama.values import PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_175B = Model(
    preset="language_model",
    vocab_size=50257,
    released={
        "num_layers": 96,
        "hidden_size": 12288,
        "ffn_hidden_size": 49152,
        "num_attention_heads": 96,
        "add_position_embedding": True,
        "max_position_embeddings": 2048,
        "add_bias_linear": True,
        "swiglu": False,
        "untie_embeddings_and_output_weights": False,
    },
)

pretrain_config = pretraining(_175B, {**PRETRAIN, "seq_length": 2048}, degrees(4, 8, vp=6, sp=True))
