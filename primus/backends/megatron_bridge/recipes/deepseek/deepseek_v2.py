"""DeepSeek-V2 and its lite form."""

from primus.backends.megatron_bridge.recipes.adapters import LATENT, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN, released
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import WHOLE_LAYERS
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_LITE = Model(preset="deepseek_v2_lite", vocab_size=102400, tokenizer="deepseek-ai/DeepSeek-V2-Lite", released=released())
_V2 = Model(preset="deepseek_v2", vocab_size=102400, tokenizer="deepseek-ai/DeepSeek-V2", released=released())

_LITE_LATENT = ("linear_q_proj", *LATENT[2:])

deepseek_v2_lite_pretrain_config = pretraining(_LITE, PRETRAIN, degrees(ep=8), fields=WHOLE_LAYERS)
deepseek_v2_lite_finetune_config, deepseek_v2_lite_sft_config, deepseek_v2_lite_peft_config = finetunings(
    _LITE, FINETUNE, NEWER, full=degrees(ep=8), adapters=degrees(), lora=Lora(target_modules=_LITE_LATENT)
)

deepseek_v2_pretrain_config = pretraining(_V2, PRETRAIN, degrees(1, 4, 32), fields=WHOLE_LAYERS)
deepseek_v2_finetune_config, deepseek_v2_sft_config, deepseek_v2_peft_config = finetunings(
    _V2, FINETUNE, NEWER, full=degrees(1, 4, 32), adapters=degrees(1, 4, 8), lora=Lora(target_modules=LATENT)
)
