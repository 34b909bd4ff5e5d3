"""What the flavors of DeepSeek models have in common."""

from collections.abc import Mapping
from typing import Any

from primus.backends.megatron_bridge.recipes.finetuning import Family

__all__ = ["FINETUNE", "NEWER", "PRETRAIN", "released"]

PRETRAIN = {
    "train_iters": 1_000_000,
    "global_batch_size": 512,
    "micro_batch_size": 1,
    "seq_length": 4096,
    "lr_warmup_iters": 2000,
    "eval_interval": 2000,
    "save_interval": 2000,
    "use_null_tokenizer": True,
}
FINETUNE = Family(arguments={"seq_length": 2048, "global_batch_size": 128, "eval_interval": 50, "save_interval": 50})
NEWER = Family(arguments={"packed_sequence": True})


def released(**keys: Any) -> Mapping[str, Any]:
    """Return what the weights of a DeepSeek need beside a shape."""
    return {"max_position_embeddings": 163840, "moe_router_dtype": "fp32", **keys}
