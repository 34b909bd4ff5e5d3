"""Qwen3-Next: three layers of four are linear attention."""

from primus.backends.megatron_bridge.recipes.adapters import Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining
from primus.backends.megatron_bridge.recipes.qwen.values import NEWER, PRETRAIN

_80B = Model(
    preset="qwen3_5_35B_A3B",
    vocab_size=151936,
    tokenizer="Qwen/Qwen3-Next-80B-A3B-Instruct",
    released={
        "num_layers": 48,
        "num_experts": 512,
        "moe_router_topk": 10,
        "max_position_embeddings": 262144,
        "rotary_seq_len_interpolation_factor": None,
    },
)
_DECAY = {"scheduler": {"no_weight_decay_cond_type": "qwen3_next"}}
"""Norms of queries and keys decay, too."""
_LORA = Lora(dim=8, alpha=16, target_modules=("linear_qkv", "linear_proj", "in_proj", "out_proj"))
_FINETUNE = Family(
    arguments={"train_iters": 100, "global_batch_size": 32, "seq_length": 2048, "eval_interval": 50, "save_interval": 100},
    fields={"optimizer": {"adam_beta2": 0.95}},
)

qwen3_next_80b_a3b_pretrain_config = pretraining(_80B, PRETRAIN, degrees(1, 4, 8), fields=_DECAY)
qwen3_next_80b_a3b_finetune_config, qwen3_next_80b_a3b_sft_config, qwen3_next_80b_a3b_peft_config = finetunings(
    _80B, _FINETUNE, NEWER, full=degrees(1, 4, 8), adapters=degrees(1, 4, 8), lora=_LORA, fields=_DECAY
)
