"""Qwen2 and Qwen2.5."""

from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining
from primus.backends.megatron_bridge.recipes.qwen.values import NEWER, PRETRAIN, released_2

_PRETRAIN = {**PRETRAIN, "use_null_tokenizer": True}
_FINETUNE = Family(
    arguments={
        "train_iters": 100,
        "global_batch_size": 128,
        "eval_interval": 50,
        "save_interval": 100,
        "lr_warmup_iters": 10,
    },
    packed={"seq_length": 2048},
    unpacked={"seq_length": 4096},
    fields={
        "train": {"eval_iters": 10},
        "optimizer": {"adam_beta2": 0.95},
        "ddp": {"grad_reduce_in_fp32": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    },
)

_HALF = {"num_layers": 24, "hidden_size": 896, "ffn_hidden_size": 4864, "num_attention_heads": 14, "num_query_groups": 2}
_1P5 = {"num_layers": 28, "hidden_size": 1536, "ffn_hidden_size": 8960, "num_attention_heads": 12, "num_query_groups": 2}


def _small(hf_path: str, **keys: int) -> Model:
    return Model(preset="qwen2.5_base", vocab_size=151936, hf_path=hf_path, released=released_2(tied=True, **keys))


def _large(preset: str, hf_path: str, norm_epsilon: float = 1e-6) -> Model:
    return Model(preset=preset, vocab_size=152064, hf_path=hf_path, released=released_2(norm_epsilon=norm_epsilon))


# Qwen2
_MODEL = _small("Qwen/Qwen2-0.5B", **_HALF)
qwen2_500m_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees())
qwen2_500m_finetune_config, qwen2_500m_sft_config, qwen2_500m_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _small("Qwen/Qwen2-1.5B", **_1P5)
qwen2_1p5b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees())
qwen2_1p5b_finetune_config, qwen2_1p5b_sft_config, qwen2_1p5b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _large("qwen2.5_7B", "Qwen/Qwen2-7B")
qwen2_7b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(2))
qwen2_7b_finetune_config, qwen2_7b_sft_config, qwen2_7b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER, full=degrees(2))

_MODEL = _large("qwen2.5_72B", "Qwen/Qwen2-72B", 1e-5)
qwen2_72b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(8, 4))
qwen2_72b_finetune_config, qwen2_72b_sft_config, qwen2_72b_peft_config = finetunings(
    _MODEL, _FINETUNE, NEWER, full=degrees(8, 4), adapters=degrees(8)
)

# Qwen2.5
_MODEL = _small("Qwen/Qwen2.5-0.5B", **_HALF, max_position_embeddings=32768)
qwen25_500m_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees())
qwen25_500m_finetune_config, qwen25_500m_sft_config, qwen25_500m_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _small("Qwen/Qwen2.5-1.5B", **_1P5)
qwen25_1p5b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees())
qwen25_1p5b_finetune_config, qwen25_1p5b_sft_config, qwen25_1p5b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _large("qwen2.5_7B", "Qwen/Qwen2.5-7B")
qwen25_7b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(2))
qwen25_7b_finetune_config, qwen25_7b_sft_config, qwen25_7b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER, full=degrees(2))

_MODEL = _large("qwen2.5_14B", "Qwen/Qwen2.5-14B", 1e-5)
qwen25_14b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(4))
qwen25_14b_finetune_config, qwen25_14b_sft_config, qwen25_14b_peft_config = finetunings(
    _MODEL, _FINETUNE, NEWER, full=degrees(4)
)

_MODEL = _large("qwen2.5_32B", "Qwen/Qwen2.5-32B", 1e-5)
qwen25_32b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(8, 2))
qwen25_32b_finetune_config, qwen25_32b_sft_config, qwen25_32b_peft_config = finetunings(
    _MODEL, _FINETUNE, NEWER, full=degrees(8, 2), adapters=degrees(8)
)

_MODEL = _large("qwen2.5_72B", "Qwen/Qwen2.5-72B", 1e-5)
qwen25_72b_pretrain_config = pretraining(_MODEL, _PRETRAIN, degrees(8, 4))
qwen25_72b_finetune_config, qwen25_72b_sft_config, qwen25_72b_peft_config = finetunings(
    _MODEL, _FINETUNE, NEWER, full=degrees(8, 4), adapters=degrees(8)
)
