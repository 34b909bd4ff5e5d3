"""GPT-OSS: learned sinks, a window in every other layer, biases, a clamped gate, YaRN.

The released weights are in MXFP4, and read from a copy in bf16.
"""

from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.llama.values import PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining


def _model(hf_path: str, num_layers: int, num_experts: int) -> Model:
    released = {
        "num_layers": num_layers,
        "hidden_size": 2880,
        "ffn_hidden_size": 2880,
        "num_attention_heads": 64,
        "group_query_attention": True,
        "num_query_groups": 8,
        "kv_channels": 64,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "use_sink_attention": True,
        "window_size": [127, 0],
        "window_attn_skip_freq": [int(number % 2 == 0) for number in range(num_layers)],
        "swiglu": False,
        "quick_geglu": True,
        "activation_func_clamp_value": 7.0,
        "glu_linear_offset": 1.0,
        "position_embedding_type": "yarn",
        "max_position_embeddings": 131072,
        "rotary_base": 150000,
        "rotary_scaling_factor": 32.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 0.0,
        "yarn_correction_range_round_to_int": False,
        "num_experts": num_experts,
        "moe_ffn_hidden_size": 2880,
        "moe_router_topk": 4,
        "moe_router_dtype": "fp32",
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    return Model(preset="llama_base", vocab_size=201088, hf_path=hf_path, released=released)


_20B = _model("openai/gpt-oss-20b", 24, 32)
_120B = _model("openai/gpt-oss-120b", 36, 128)

_PRETRAIN = {**PRETRAIN, "train_iters": 1_000_000, "seq_length": 4096}
_FINETUNE = Family(arguments={"seq_length": 2048, "global_batch_size": 128, "eval_interval": 50, "save_interval": 50})
_NEWER = Family(arguments={"packed_sequence": True})

gpt_oss_20b_pretrain_config = pretraining(_20B, _PRETRAIN, degrees(2, 4, 4, sp=True))
gpt_oss_20b_finetune_config, gpt_oss_20b_sft_config, gpt_oss_20b_peft_config = finetunings(
    _20B, _FINETUNE, _NEWER, full=degrees(1, 1, 8), adapters=degrees(1, 1, 1)
)

gpt_oss_120b_pretrain_config = pretraining(_120B, _PRETRAIN, degrees(2, 4, 16, sp=True))
gpt_oss_120b_finetune_config, gpt_oss_120b_sft_config, gpt_oss_120b_peft_config = finetunings(
    _120B, _FINETUNE, _NEWER, full=degrees(1, 4, 8), adapters=degrees(1, 1, 8)
)
