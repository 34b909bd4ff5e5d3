"""Qwen3, the dense models."""

from primus.backends.megatron_bridge.recipes.adapters import ATTENTION, Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import WHOLE_LAYERS
from primus.backends.megatron_bridge.recipes.pretraining import pretraining
from primus.backends.megatron_bridge.recipes.qwen.values import NEWER, PRETRAIN, released_3

_FINETUNE = Family(
    arguments={"seq_length": 2048, "eval_interval": 30, "save_interval": 50},
    packed={"global_batch_size": 8},
    unpacked={"global_batch_size": 128},
    fields={"train": {"manual_gc": False}},
)
_NEWER_8B = Family(
    arguments={
        "train_iters": 100,
        "global_batch_size": 32,
        "lr_warmup_iters": 10,
        "lr_decay_iters": 100,
        "eval_interval": 30,
        "packed_sequence": True,
    },
    fields={"optimizer": {"adam_beta2": 0.95, "adam_eps": 1e-8}},
)
_NEWER_32B = Family(arguments={"global_batch_size": 8, "eval_interval": 30, "save_interval": 50, "packed_sequence": True})


def _small(hf_path: str, layers: int, hidden: int, ffn: int, heads: int) -> Model:
    shape = {"num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": ffn, "num_attention_heads": heads}
    released = released_3(tied=True, num_query_groups=8, **shape)
    return Model(preset="qwen2.5_base", vocab_size=151936, hf_path=hf_path, released=released)


def _large(preset: str, hf_path: str) -> Model:
    return Model(preset=preset, vocab_size=151936, hf_path=hf_path, released=released_3())


_MODEL = _small("Qwen/Qwen3-0.6B", 28, 1024, 3072, 16)
qwen3_600m_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees())
qwen3_600m_finetune_config, qwen3_600m_sft_config, qwen3_600m_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _small("Qwen/Qwen3-1.7B", 28, 2048, 6144, 16)
qwen3_1p7b_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees())
qwen3_1p7b_finetune_config, qwen3_1p7b_sft_config, qwen3_1p7b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER)

_MODEL = _small("Qwen/Qwen3-4B", 36, 2560, 9728, 32)
qwen3_4b_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees(2))
qwen3_4b_finetune_config, qwen3_4b_sft_config, qwen3_4b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER, full=degrees(2))

_MODEL = _large("qwen3_8B", "Qwen/Qwen3-8B")
qwen3_8b_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees(4))
qwen3_8b_finetune_config, qwen3_8b_sft_config, qwen3_8b_peft_config = finetunings(
    _MODEL, _FINETUNE, _NEWER_8B, full=degrees(4), newer_lora=Lora(dim=8, alpha=16, target_modules=ATTENTION)
)

_MODEL = _large("qwen3_14B", "Qwen/Qwen3-14B")
qwen3_14b_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees(8))
qwen3_14b_finetune_config, qwen3_14b_sft_config, qwen3_14b_peft_config = finetunings(_MODEL, _FINETUNE, NEWER, full=degrees(8))

_MODEL = _large("qwen3_32B", "Qwen/Qwen3-32B")
qwen3_32b_pretrain_config = pretraining(_MODEL, PRETRAIN, degrees(8, 2), fields=WHOLE_LAYERS)
qwen3_32b_finetune_config, qwen3_32b_sft_config, qwen3_32b_peft_config = finetunings(
    _MODEL, _FINETUNE, _NEWER_32B, full=degrees(8, 2), fields=WHOLE_LAYERS
)
