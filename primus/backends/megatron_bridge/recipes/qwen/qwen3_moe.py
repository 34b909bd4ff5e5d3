"""Qwen3, the mixtures of experts."""

from primus.backends.megatron_bridge.recipes.adapters import ATTENTION, Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, Fields, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import WHOLE_LAYERS
from primus.backends.megatron_bridge.recipes.pretraining import pretraining
from primus.backends.megatron_bridge.recipes.qwen.values import PRETRAIN, released_3

_RELEASED = released_3(moe_router_dtype="fp32", moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=1e-3)
_30B = Model(preset="qwen3_30B_A3B", vocab_size=151936, hf_path="Qwen/Qwen3-30B-A3B", released=_RELEASED)
_235B = Model(preset="qwen3_235B_A22B", vocab_size=151936, hf_path="Qwen/Qwen3-235B-A22B", released=_RELEASED)

_ENDS_COUNT = {"model": {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}}
_DDP = {"grad_reduce_in_fp32": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
_FIELDS: Fields = {
    "train": {"eval_iters": 10},
    "optimizer": {"adam_beta2": 0.95},
    "ddp": _DDP,
    "logger": {"log_interval": 10},
}
_FINETUNE = Family(
    arguments={
        "train_iters": 100,
        "global_batch_size": 32,
        "eval_interval": 50,
        "save_interval": 100,
        "lr_warmup_iters": 10,
        "expert_tensor_parallel_size": 1,
    },
    packed={"seq_length": 2048},
    unpacked={"seq_length": 4096},
    fields=_FIELDS,
)
_NEWER = Family(
    arguments={
        "train_iters": 100,
        "global_batch_size": 32,
        "eval_interval": 50,
        "lr_warmup_iters": 10,
        "expert_tensor_parallel_size": 1,
        "packed_sequence": True,
    },
    fields={"optimizer": {"adam_beta2": 0.95}, "ddp": _DDP},
)
_LORA = Lora(dim=8, alpha=16, target_modules=ATTENTION)

qwen3_30b_a3b_pretrain_config = pretraining(_30B, PRETRAIN, degrees(4, 2, 4, sp=True), fields=WHOLE_LAYERS)
qwen3_30b_a3b_finetune_config, qwen3_30b_a3b_sft_config, qwen3_30b_a3b_peft_config = finetunings(
    _30B, _FINETUNE, _NEWER, full=degrees(4, 2, 4, sp=True), adapters=degrees(4, 1, 4, sp=True), lora=_LORA
)

qwen3_235b_a22b_pretrain_config = pretraining(
    _235B, {**PRETRAIN, "micro_batch_size": 1}, degrees(4, 16, 8, cp=2, sp=True), fields=_ENDS_COUNT
)
qwen3_235b_a22b_finetune_config, qwen3_235b_a22b_sft_config, qwen3_235b_a22b_peft_config = finetunings(
    _235B,
    _FINETUNE,
    _NEWER,
    full=degrees(4, 16, 4, sp=True),
    adapters=degrees(4, 4, 4, sp=True),
    lora=_LORA,
    fields=_ENDS_COUNT,
)
