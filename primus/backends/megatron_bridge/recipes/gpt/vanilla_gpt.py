"""A model of a few thousand weights, to try a run with; it belongs to no release."""

from primus.backends.megatron_bridge.recipes.finetuning import Family, degrees, finetunings
from primus.backends.megatron_bridge.recipes.model import Model
from primus.backends.megatron_bridge.recipes.pretraining import pretraining

_TINY = Model(
    preset="llama_tiny",
    vocab_size=512,
    released={
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_attention_heads": 4,
        "num_query_groups": 2,
    },
)
_SHORT = {
    "train_iters": 20,
    "global_batch_size": 8,
    "micro_batch_size": 1,
    "seq_length": 128,
    "lr_warmup_iters": 2,
    "eval_interval": 10,
    "save_interval": 20,
    "precision_config": "fp32",
}
_TUNED = Family(arguments=_SHORT)

vanilla_gpt_pretrain_config = pretraining(_TINY, {**_SHORT, "use_null_tokenizer": True}, degrees())
vanilla_gpt_finetune_config, vanilla_gpt_sft_config, vanilla_gpt_peft_config = finetunings(_TINY, _TUNED, _TUNED)
