"""What the flavors of Llama models have in common."""

from primus.backends.megatron_bridge.recipes.finetuning import Family

__all__ = ["FINETUNE", "NEWER", "PRETRAIN"]

PRETRAIN = {
    "train_iters": 1_168_251,
    "global_batch_size": 512,
    "micro_batch_size": 1,
    "seq_length": 8192,
    "lr_warmup_iters": 2000,
    "eval_interval": 2000,
    "save_interval": 500,
    "use_null_tokenizer": True,
}

_WITH_ADAPTERS = {
    "model": {"cross_entropy_loss_fusion": False},
    "optimizer": {"use_distributed_optimizer": False},
    "ddp": {"use_distributed_optimizer": False},
}

FINETUNE = Family(
    arguments={"eval_interval": 30, "save_interval": 50},
    packed={"global_batch_size": 8, "seq_length": 4096},
    unpacked={"global_batch_size": 128, "seq_length": 2048},
    fields_with_adapters=_WITH_ADAPTERS,
)

NEWER = Family(
    arguments={"global_batch_size": 8, "seq_length": 4096, "eval_interval": 30, "save_interval": 50, "packed_sequence": True},
    fields_with_adapters=_WITH_ADAPTERS,
)
