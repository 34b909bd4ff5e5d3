"""What Qwen models and their flavors have in common."""

from collections.abc import Mapping
from typing import Any

from primus.backends.megatron_bridge.recipes.finetuning import Family

__all__ = ["NEWER", "PRETRAIN", "released_2", "released_3"]

PRETRAIN = {
    "train_iters": 300_000,
    "global_batch_size": 32,
    "micro_batch_size": 2,
    "seq_length": 4096,
    "lr_warmup_iters": 500,
    "eval_interval": 500,
    "save_interval": 500,
}

NEWER = Family(arguments={"packed_sequence": True})


def released_2(*, tied: bool = False, **keys: Any) -> Mapping[str, Any]:
    """Return what the weights of a Qwen2 or Qwen2.5 need beside a shape."""
    bases = {"add_qkv_bias": True, "rotary_seq_len_interpolation_factor": None, "init_method_std": 0.02}
    return {**bases, "untie_embeddings_and_output_weights": not tied, **keys}


def released_3(*, tied: bool = False, **keys: Any) -> Mapping[str, Any]:
    """Return what the weights of a Qwen3 need beside a shape."""
    bases = {
        "qk_layernorm": True,
        "kv_channels": 128,
        "max_position_embeddings": 40960,
        "rotary_seq_len_interpolation_factor": None,
        "init_method_std": 0.02,
    }
    return {**bases, "untie_embeddings_and_output_weights": not tied, **keys}
