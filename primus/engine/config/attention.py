"""Heads of attention, and what each does to its scores."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["AttentionConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionConfig:
    """Multi-head and grouped-query attention."""

    num_attention_heads: int
    """Query heads."""
    num_query_groups: int
    """Key/value heads; equal to `num_attention_heads` for plain multi-head attention."""
    kv_channels: int
    """Channels of a head."""
    attention_dropout: float = 0.0
    """Dropout on the attention probabilities."""
    add_qkv_bias: bool = False
    """Bias on the fused QKV projection."""
    qk_norm: Literal["none", "model", "l2"] = "none"
    """`model`: the model's norm with its own weight on each query and key head; `l2`: the weightless norm."""
    backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    """`auto`, `flash`, `fused` use scaled_dot_product_attention; `unfused` and `local` the explicit matmul and softmax."""
    softmax_in_fp32: bool = False
    """Explicit attention only: scores are cast to fp32 before the softmax."""
    query_key_layer_scaling: bool = False
    """Explicit attention only: divide scores by the layer number and multiply back in fp32."""
