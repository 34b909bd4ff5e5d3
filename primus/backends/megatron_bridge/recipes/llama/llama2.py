"""Llama 2."""

from primus.backends.megatron_bridge.recipes.adapters import Lora
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.llama.values import FINETUNE, NEWER, PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_VALUES = {**PRETRAIN, "seq_length": 4096, "save_interval": 2000}

_7B = Model(preset="llama2_7B", vocab_size=32000, hf_path="meta-llama/Llama-2-7b-hf")
_13B = Model(preset="llama2_13B", vocab_size=32000, hf_path="meta-llama/Llama-2-13b-hf")
_70B = Model(preset="llama2_70B", vocab_size=32000, hf_path="meta-llama/Llama-2-70b-hf")

llama2_7b_pretrain_config = pretraining(_7B, _VALUES, degrees(2))
llama2_7b_finetune_config, llama2_7b_sft_config, llama2_7b_peft_config = finetunings(
    _7B, FINETUNE, NEWER, full=degrees(2), lora=Lora(dim=8, alpha=16)
)

llama2_13b_pretrain_config = pretraining(_13B, _VALUES, degrees(4))
llama2_13b_finetune_config, llama2_13b_sft_config, llama2_13b_peft_config = finetunings(
    _13B, FINETUNE, NEWER, full=degrees(4), lora=Lora(dim=8, alpha=16)
)

llama2_70b_pretrain_config = pretraining(_70B, _VALUES, degrees(4, 4, vp=5, cp=2, sp=True))
llama2_70b_finetune_config, llama2_70b_sft_config, llama2_70b_peft_config = finetunings(
    _70B, FINETUNE, NEWER, full=degrees(8, 4), adapters=degrees(8), lora=Lora(dim=16, alpha=32)
)
