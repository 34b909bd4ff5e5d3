"""GLM-4.5. Its weights start from a checkpoint of ours: no Hugging Face folder of this family is read."""

from primus.backends.megatron_bridge.recipes.adapters import ATTENTION, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_BOTH = {
    "add_qkv_bias": True,
    "max_position_embeddings": 131072,
    "rotary_base": 1000000,
    "rotary_percent": 0.5,
    "norm_epsilon": 1.0e-5,
    "init_method_std": 0.02,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_dtype": "fp32",
    "moe_router_load_balancing_type": "seq_aux_loss",
    "moe_aux_loss_coeff": 1.0e-3,
}
_355B = Model(
    preset="glm4_7",
    vocab_size=151552,
    tokenizer="zai-org/GLM-4.5",
    released={
        **_BOTH,
        "num_layers": 92,
        "moe_layer_freq": "([0]*3+[1]*89)",
        "qk_layernorm": True,
        "moe_router_topk_scaling_factor": 2.5,
    },
)
_AIR = Model(
    preset="glm4_7",
    vocab_size=151552,
    tokenizer="zai-org/GLM-4.5-Air",
    released={
        **_BOTH,
        "num_layers": 46,
        "hidden_size": 4096,
        "ffn_hidden_size": 10944,
        "num_experts": 128,
        "moe_layer_freq": "([0]*1+[1]*45)",
        "moe_ffn_hidden_size": 1408,
        "moe_shared_expert_intermediate_size": 1408,
        "moe_router_topk_scaling_factor": 1.0,
    },
)
_LORA = Lora(dim=8, alpha=16, target_modules=ATTENTION)
_ENDS_COUNT = {"model": {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}}

glm45_355b_pretrain_config = pretraining(_355B, PRETRAIN, degrees(2, 8, 16, sp=True), fields=_ENDS_COUNT)
glm45_355b_finetune_config, glm45_355b_sft_config, glm45_355b_peft_config = finetunings(
    _355B,
    FINETUNE,
    NEWER,
    full=degrees(2, 8, 16, sp=True),
    adapters=degrees(2, 4, 4, sp=True),
    lora=_LORA,
    fields=_ENDS_COUNT,
)

glm45_air_106b_pretrain_config = pretraining(_AIR, PRETRAIN, degrees(1, 4, 8), fields=_ENDS_COUNT)
glm45_air_106b_finetune_config, glm45_air_106b_sft_config, glm45_air_106b_peft_config = finetunings(
    _AIR, FINETUNE, NEWER, full=degrees(1, 4, 8), adapters=degrees(1, 2, 4), lora=_LORA, fields=_ENDS_COUNT
)
