"""Mamba-2. Its weights start from a checkpoint of ours: no Hugging Face folder of this family is read."""

from typing import Any

from primus.backends.megatron_bridge.recipes.adapters import Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_PRETRAIN = {
    "train_iters": 1_168_251,
    "global_batch_size": 512,
    "micro_batch_size": 1,
    "seq_length": 4096,
    "lr_warmup_iters": 2000,
    "eval_interval": 2000,
    "save_interval": 2000,
    "use_null_tokenizer": True,
}
_FINETUNE = Family(arguments={"seq_length": 2048, "global_batch_size": 128, "eval_interval": 50, "save_interval": 50})
_LORA = Lora(target_modules=("in_proj", "out_proj"))


def _model(num_layers: int, hidden_size: int, **keys: Any) -> Model:
    released = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "ffn_hidden_size": hidden_size,
        "num_attention_heads": hidden_size // 64,
        "normalization": "RMSNorm",
        "position_embedding_type": "none",
        "max_position_embeddings": 8192,
        "is_hybrid_model": True,
        "mamba_num_groups": 1,
    }
    return Model(preset="mamba_base", vocab_size=50280, tokenizer="EleutherAI/gpt-neox-20b", released={**released, **keys})


_130M, _370M, _780M = _model(24, 768), _model(48, 1024), _model(48, 1536)
_1P3B, _2P7B = _model(48, 2048), _model(64, 2560)
_8B = _model(56, 4096, mamba_num_groups=8, untie_embeddings_and_output_weights=True)

mamba2_130m_pretrain_config = pretraining(_130M, _PRETRAIN, degrees())
mamba2_130m_finetune_config, mamba2_130m_sft_config, mamba2_130m_peft_config = finetunings(
    _130M, _FINETUNE, _FINETUNE, lora=_LORA
)

mamba2_370m_pretrain_config = pretraining(_370M, _PRETRAIN, degrees())
mamba2_370m_finetune_config, mamba2_370m_sft_config, mamba2_370m_peft_config = finetunings(
    _370M, _FINETUNE, _FINETUNE, lora=_LORA
)

mamba2_780m_pretrain_config = pretraining(_780M, _PRETRAIN, degrees())
mamba2_780m_finetune_config, mamba2_780m_sft_config, mamba2_780m_peft_config = finetunings(
    _780M, _FINETUNE, _FINETUNE, lora=_LORA
)

mamba2_1p3b_pretrain_config = pretraining(_1P3B, _PRETRAIN, degrees())
mamba2_1p3b_finetune_config, mamba2_1p3b_sft_config, mamba2_1p3b_peft_config = finetunings(
    _1P3B, _FINETUNE, _FINETUNE, lora=_LORA
)

mamba2_2p7b_pretrain_config = pretraining(_2P7B, _PRETRAIN, degrees())
mamba2_2p7b_finetune_config, mamba2_2p7b_sft_config, mamba2_2p7b_peft_config = finetunings(
    _2P7B, _FINETUNE, _FINETUNE, lora=_LORA
)

mamba2_8b_pretrain_config = pretraining(_8B, _PRETRAIN, degrees(8))
mamba2_8b_finetune_config, mamba2_8b_sft_config, mamba2_8b_peft_config = finetunings(
    _8B, _FINETUNE, _FINETUNE, full=degrees(8), lora=_LORA
)
