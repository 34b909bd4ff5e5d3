"""Moonlight 16B-A3B, a DeepSeek-V3 without latent queries."""

from primus.backends.megatron_bridge.recipes.adapters import LATENT, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN, released
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_16B = Model(
    preset="deepseek_v3_base",
    vocab_size=163840,
    hf_path="moonshotai/Moonlight-16B-A3B",
    released=released(
        num_layers=27,
        hidden_size=2048,
        ffn_hidden_size=11264,
        num_attention_heads=16,
        kv_channels=128,
        q_lora_rank=None,
        kv_lora_rank=512,
        max_position_embeddings=8192,
        rope_type="rope",
        rotary_base=50000,
        norm_epsilon=1.0e-5,
        num_experts=64,
        moe_layer_freq="([0]*1+[1]*26)",
        moe_ffn_hidden_size=1408,
        moe_shared_expert_intermediate_size=2816,
        moe_router_topk=6,
        moe_router_topk_scaling_factor=2.446,
        mtp_num_layers=None,
    ),
)

moonlight_16b_pretrain_config = pretraining(_16B, PRETRAIN, degrees(2, 1, 8, sp=True))
moonlight_16b_finetune_config, moonlight_16b_sft_config, moonlight_16b_peft_config = finetunings(
    _16B,
    FINETUNE,
    NEWER,
    full=degrees(2, 1, 8, sp=True),
    adapters=degrees(1, 1, 2),
    lora=Lora(target_modules=("linear_q_proj", *LATENT[2:])),
)
