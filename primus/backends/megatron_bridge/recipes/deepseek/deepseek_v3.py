"""DeepSeek-V3. The released weights are in FP8, and read from a copy in bf16."""

from primus.backends.megatron_bridge.recipes.adapters import LATENT, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN, released
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import NORM_RECOMPUTED, SUMS_IN_BF16
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_V3 = Model(
    preset="deepseek_v3",
    vocab_size=129280,
    hf_path="deepseek-ai/DeepSeek-V3-Base",
    released=released(moe_aux_loss_coeff=1e-4, init_method_std=0.006),
)
_PRETRAIN = {**PRETRAIN, "global_batch_size": 4096, "expert_tensor_parallel_size": 1, "precision_config": SUMS_IN_BF16}

deepseek_v3_pretrain_config = pretraining(_V3, _PRETRAIN, degrees(2, 16, 64, sp=True), fields=NORM_RECOMPUTED)
deepseek_v3_pretrain_config_32nodes = pretraining(_V3, _PRETRAIN, degrees(2, 8, 32, sp=True), fields=NORM_RECOMPUTED)
deepseek_v3_finetune_config, deepseek_v3_sft_config, deepseek_v3_peft_config = finetunings(
    _V3, FINETUNE, NEWER, full=degrees(2, 16, 64, sp=True), adapters=degrees(2, 8, 8, sp=True), lora=Lora(target_modules=LATENT)
)
