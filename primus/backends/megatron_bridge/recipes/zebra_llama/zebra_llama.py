"""Zebra-Llama: mixers of Mamba-2 between layers of latent attention. Weights start from a checkpoint of ours."""

from primus.backends.megatron_bridge.recipes.adapters import LATENT, Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.llama.values import PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_FINETUNE = Family(arguments={"seq_length": 2048, "global_batch_size": 128, "eval_interval": 30, "save_interval": 50})
_LORA = Lora(target_modules=("in_proj", "out_proj", *LATENT))


def _model(size: str) -> Model:
    released = {"max_position_embeddings": 131072}
    return Model(preset=f"zebra_llama_{size}", vocab_size=128256, tokenizer="meta-llama/Llama-3.2-1B", released=released)


_1B, _3B, _8B = map(_model, ("1B", "3B", "8B"))

zebra_llama_1b_pretrain_config = pretraining(_1B, PRETRAIN, degrees())
zebra_llama_1b_finetune_config, zebra_llama_1b_sft_config, zebra_llama_1b_peft_config = finetunings(
    _1B, _FINETUNE, _FINETUNE, lora=_LORA
)

zebra_llama_3b_pretrain_config = pretraining(_3B, PRETRAIN, degrees())
zebra_llama_3b_finetune_config, zebra_llama_3b_sft_config, zebra_llama_3b_peft_config = finetunings(
    _3B, _FINETUNE, _FINETUNE, lora=_LORA
)

zebra_llama_8b_pretrain_config = pretraining(_8B, PRETRAIN, degrees())
zebra_llama_8b_finetune_config, zebra_llama_8b_sft_config, zebra_llama_8b_peft_config = finetunings(
    _8B, _FINETUNE, _FINETUNE, lora=_LORA
)
