"""Llama 3, 3.1 and 3.2."""

from primus.backends.megatron_bridge.recipes.adapters import Lora
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.llama.values import FINETUNE, NEWER, PRETRAIN
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.parts import SUMS_IN_BF16
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_VOCABULARY = 128256
_LONG = {"use_rope_scaling": True, "max_position_embeddings": 131072}
_SMALL = {**_LONG, "rope_scaling_factor": 32.0, "untie_embeddings_and_output_weights": False}

_1B = Model(preset="llama3.2_1B", vocab_size=_VOCABULARY, hf_path="meta-llama/Llama-3.2-1B", released=_SMALL)
_3B = Model(preset="llama3.2_3B", vocab_size=_VOCABULARY, hf_path="meta-llama/Llama-3.2-3B", released=_SMALL)
_8B = Model(preset="llama3_8B", vocab_size=_VOCABULARY, hf_path="meta-llama/Meta-Llama-3-8B")
_8B_31 = Model(preset="llama3.1_8B", vocab_size=_VOCABULARY, hf_path="meta-llama/Meta-Llama-3.1-8B", released=_LONG)
_70B = Model(preset="llama3_70B", vocab_size=_VOCABULARY, hf_path="meta-llama/Meta-Llama-3-70B")
_70B_31 = Model(preset="llama3.1_70B", vocab_size=_VOCABULARY, hf_path="meta-llama/Meta-Llama-3.1-70B", released=_LONG)
_405B_31 = Model(preset="llama3.1_405B", vocab_size=_VOCABULARY, hf_path="meta-llama/Meta-Llama-3.1-405B", released=_LONG)

_ENDS_COUNT = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}


def _long(seq_length: int) -> dict[str, dict[str, int]]:
    """Positions that the released model has not."""
    return {"model": {"max_position_embeddings": seq_length}}


# 3.2
llama32_1b_pretrain_config = pretraining(_1B, PRETRAIN, degrees())
llama32_1b_finetune_config, llama32_1b_sft_config, llama32_1b_peft_config = finetunings(_1B, FINETUNE, NEWER)

llama32_3b_pretrain_config = pretraining(_3B, PRETRAIN, degrees())
llama32_3b_finetune_config, llama32_3b_sft_config, llama32_3b_peft_config = finetunings(_3B, FINETUNE, NEWER)

# 8B
llama3_8b_pretrain_config = pretraining(_8B, PRETRAIN, degrees(cp=2))
llama3_8b_16k_pretrain_config = pretraining(
    _8B, {**PRETRAIN, "seq_length": 16384}, degrees(4, 2, cp=2, sp=True), fields=_long(16384)
)
llama3_8b_64k_pretrain_config = pretraining(
    _8B, {**PRETRAIN, "seq_length": 65536}, degrees(4, 2, cp=4, sp=True), fields=_long(65536)
)
llama3_8b_128k_pretrain_config = pretraining(
    _8B, {**PRETRAIN, "seq_length": 131072}, degrees(4, 2, cp=8, sp=True), fields=_long(131072)
)
llama3_8b_finetune_config, llama3_8b_sft_config, llama3_8b_peft_config = finetunings(
    _8B, FINETUNE, NEWER, full=degrees(2), lora=Lora(dim=8, alpha=16)
)

llama31_8b_pretrain_config = pretraining(_8B_31, PRETRAIN, degrees(cp=2))
llama31_8b_finetune_config, llama31_8b_sft_config, llama31_8b_peft_config = finetunings(
    _8B_31, FINETUNE, NEWER, full=degrees(2), lora=Lora(dim=8, alpha=16)
)

# 70B
llama3_70b_pretrain_config = pretraining(_70B, PRETRAIN, degrees(4, 4, vp=5, cp=2, sp=True))
llama3_70b_16k_pretrain_config = pretraining(
    _70B, {**PRETRAIN, "seq_length": 16384}, degrees(8, 2, cp=2, sp=True), fields=_long(16384)
)
llama3_70b_64k_pretrain_config = pretraining(
    _70B, {**PRETRAIN, "seq_length": 65536}, degrees(8, 4, cp=8, sp=True), fields=_long(65536)
)
llama3_70b_finetune_config, llama3_70b_sft_config, llama3_70b_peft_config = finetunings(
    _70B, FINETUNE, NEWER, full=degrees(8, 4), adapters=degrees(8), lora=Lora(dim=16, alpha=32)
)

llama31_70b_pretrain_config = pretraining(_70B_31, {**PRETRAIN, "seq_length": 131072}, degrees(4, 4, vp=5, cp=2, sp=True))
llama31_70b_finetune_config, llama31_70b_sft_config, llama31_70b_peft_config = finetunings(
    _70B_31, FINETUNE, NEWER, full=degrees(8, 4), adapters=degrees(8), lora=Lora(dim=16, alpha=32)
)

# 405B
_405B_SIZES = {"seq_length": 2048, "precision_config": SUMS_IN_BF16}
llama31_405b_pretrain_config = pretraining(
    _405B_31,
    {**PRETRAIN, "seq_length": 131072, "precision_config": SUMS_IN_BF16},
    degrees(8, 8, vp=2, cp=4, sp=True),
    fields={"model": _ENDS_COUNT},
)
llama31_405b_finetune_config, llama31_405b_sft_config, llama31_405b_peft_config = finetunings(
    _405B_31,
    FINETUNE,
    NEWER,
    full={**degrees(8, 16, sp=True), **_405B_SIZES, "global_batch_size": 16},
    adapters={**degrees(4, 8, vp=8, sp=True), **_405B_SIZES, "global_batch_size": 32},
    lora=Lora(dim=16, alpha=32, target_modules=("linear_qkv",)),
    fields={
        "model": _ENDS_COUNT,
        "ddp": {"overlap_grad_reduce": True, "overlap_param_gather": True},
    },
)
