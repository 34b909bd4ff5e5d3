"""Heads of attention, and what each does to its scores."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["AttentionConfig", "MLAConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MLAConfig:
    """Multi-latent attention (arXiv 2405.04434): keys and values come from a small latent vector, and queries may too."""

    enabled: bool = False
    """False: keys and values are projected directly."""
    q_lora_rank: int | None = None
    """Width of the queries' latent vector; None projects them directly."""
    kv_lora_rank: int = 32
    """Width of the keys' and values' latent vector."""
    qk_head_dim: int = 128
    """Channels of a query or key head that are not rotated."""
    qk_pos_emb_head_dim: int = 64
    """Rotated channels; all heads share the keys' ones."""
    v_head_dim: int = 128
    """Channels of a value head."""

    @property
    def score_channels(self) -> int:
        """Channels of a query or key head."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim


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
    qk_norm: Literal["none", "model", "whole", "l2"] = "none"
    """`model`: the model's norm with one weight for all heads, on each; `whole`: on all heads together; `l2`: weightless."""
    output_gate: bool = False
    """What heads give is multiplied by a sigmoid of a projection of the layer's input, as wide as the queries."""
    backend: Literal["auto", "flash", "fused", "unfused", "local"] = "auto"
    """`auto`, `flash`, `fused` use scaled_dot_product_attention; `unfused` and `local` the explicit matmul and softmax."""
    softmax_in_fp32: bool = False
    """Explicit attention only: scores are cast to fp32 before the softmax."""
    soft_cap: float | None = None
    """Bound of scaled scores, before the mask; None: none."""
    sinks: bool = False
    """A learned score for each head takes part in its softmax and has no value."""
    window: int | None = None
    """Keys that a query sees, that of its own position among them; None: all before it."""
    full_layers: tuple[int, ...] = ()
    """Numbers of the layers without that window."""
    chunk: int | None = None
    """Positions of a chunk, whose queries see keys of it alone, in layers that rotate; None: no chunks."""
    mla: MLAConfig = field(default_factory=MLAConfig)
    """Latent vectors, whose norms `qk_norm` then means; `kv_channels` and `num_query_groups` have no meaning with it."""
    query_key_layer_scaling: bool = False
    """Explicit attention only: divide scores by the layer number and multiply back in fp32."""
