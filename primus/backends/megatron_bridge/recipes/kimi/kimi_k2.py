"""Kimi K2, a DeepSeek-V3 of another shape."""

from primus.backends.megatron_bridge.recipes.adapters import LATENT, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN, released
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import NORM_RECOMPUTED
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_K2 = Model(
    preset="kimi_k2",
    vocab_size=163840,
    tokenizer="moonshotai/Kimi-K2-Instruct",
    released=released(
        max_position_embeddings=131072,
        rotary_base=50000,
        rotary_scaling_factor=32,
        moe_router_topk_scaling_factor=2.827,
        mtp_num_layers=None,
    ),
)

kimi_k2_pretrain_config = pretraining(
    _K2, {**PRETRAIN, "global_batch_size": 4096}, degrees(2, 16, 32, sp=True), fields=NORM_RECOMPUTED
)
kimi_k2_finetune_config, kimi_k2_sft_config, kimi_k2_peft_config = finetunings(
    _K2, FINETUNE, NEWER, full=degrees(2, 16, 32, sp=True), adapters=degrees(2, 8, 8, sp=True), lora=Lora(target_modules=LATENT)
)
