"""Mixtral. Megatron-Bridge has no recipe of it; the values are those of its mixtures of the same size."""

from primus.backends.megatron_bridge.recipes.adapters import ATTENTION, Lora
from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.llama.values import PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_8X7B = Model(
    preset="mixtral_8x7B_v0.1",
    vocab_size=32000,
    hf_path="mistralai/Mixtral-8x7B-v0.1",
    released={"max_position_embeddings": 32768, "moe_router_dtype": "fp32"},
)
_8X22B = Model(
    preset="mixtral_8x22B_v0.1", vocab_size=32768, hf_path="mistralai/Mixtral-8x22B-v0.1", released={"moe_router_dtype": "fp32"}
)

_PRETRAIN = {**PRETRAIN, "train_iters": 1_000_000, "seq_length": 4096}
_FINETUNE = Family(
    arguments={
        "train_iters": 100,
        "global_batch_size": 32,
        "seq_length": 2048,
        "eval_interval": 50,
        "save_interval": 100,
        "lr_warmup_iters": 10,
    }
)
_NEWER = Family(arguments={**_FINETUNE.arguments, "packed_sequence": True})
_LORA = Lora(dim=8, alpha=16, target_modules=ATTENTION)

mixtral_8x7b_pretrain_config = pretraining(_8X7B, _PRETRAIN, degrees(1, 4, 8))
mixtral_8x7b_finetune_config, mixtral_8x7b_sft_config, mixtral_8x7b_peft_config = finetunings(
    _8X7B, _FINETUNE, _NEWER, full=degrees(1, 4, 8), adapters=degrees(ep=8), lora=_LORA
)

mixtral_8x22b_pretrain_config = pretraining(_8X22B, _PRETRAIN, degrees(4, 4, 8, vp=14, sp=True))
mixtral_8x22b_finetune_config, mixtral_8x22b_sft_config, mixtral_8x22b_peft_config = finetunings(
    _8X22B, _FINETUNE, _NEWER, full=degrees(4, 4, 8, sp=True), adapters=degrees(4, 1, 8, sp=True), lora=_LORA
)
