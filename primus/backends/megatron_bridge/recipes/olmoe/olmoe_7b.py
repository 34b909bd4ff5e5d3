"""OLMoE 7B. Its weights start from a checkpoint of ours: no Hugging Face folder of this family is read."""

from primus.backends.megatron_bridge.recipes.adapters import ATTENTION, Lora
from primus.backends.megatron_bridge.recipes.deepseek.values import FINETUNE, NEWER, PRETRAIN
from primus.backends.megatron_bridge.recipes.finetuning import degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_7B = Model(
    preset="llama_base",
    vocab_size=50304,
    tokenizer="allenai/OLMoE-1B-7B-0125",
    released={
        "num_layers": 16,
        "hidden_size": 2048,
        "ffn_hidden_size": 1024,
        "num_attention_heads": 16,
        "qk_layernorm": True,
        "qk_norm_type": "per_layer",
        "max_position_embeddings": 4096,
        "num_experts": 64,
        "moe_ffn_hidden_size": 1024,
        "moe_router_topk": 8,
        "moe_router_pre_softmax": True,
        "moe_router_dtype": "fp32",
        "moe_aux_loss_coeff": 1.0e-2,
        "moe_z_loss_coeff": 1.0e-3,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    },
)

olmoe_7b_pretrain_config = pretraining(_7B, PRETRAIN, degrees(ep=8))
olmoe_7b_finetune_config, olmoe_7b_sft_config, olmoe_7b_peft_config = finetunings(
    _7B, FINETUNE, NEWER, full=degrees(ep=8), adapters=degrees(), lora=Lora(dim=8, alpha=16, target_modules=ATTENTION)
)
