"""The decoder: widths, parts, positions, initialisation, and how it is divided over ranks."""

from dataclasses import dataclass, field
from typing import Literal

from primus.engine.config.moe import MoEConfig
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.config.recompute import RecomputeConfig
from primus.engine.config.tp_overlap import TPOverlapConfig

__all__ = [
    "GATED_ACTIVATIONS",
    "Activation",
    "AttentionConfig",
    "FusionConfig",
    "InitConfig",
    "ModelConfig",
    "ParallelConfig",
    "PositionConfig",
]

Activation = Literal["swiglu", "gelu", "gelu_tanh", "quick_geglu", "squared_relu"]
GATED_ACTIVATIONS: tuple[Activation, ...] = ("swiglu", "quick_geglu")
"""They multiply two halves, so the first feed-forward matrix has twice the rows."""
ContextCommunication = Literal["p2p", "a2a", "allgather", "a2a+p2p"]
PositionType = Literal["learned_absolute", "rope", "yarn", "none"]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionConfig:
    """Position information: a learned table, a rotation of queries and keys, or nothing."""

    type: PositionType = "rope"
    """Scheme."""
    max_position_embeddings: int
    """Rows of the learned table; an upper bound of the sequence length for every scheme."""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies."""
    rotary_percent: float = 1.0
    """Share of a head's channels that is rotated."""
    rotary_interleaved: bool = False
    """Rotate neighbouring channels instead of the two halves."""
    interpolation_factor: float | None = None
    """Positions are divided by it (`rotary_seq_len_interpolation_factor`)."""
    use_rope_scaling: bool = False
    """Llama-3 frequency scaling."""
    rope_scaling_factor: float = 8.0
    """Factor of the Llama-3 scaling."""
    yarn_scaling_factor: float = 1.0
    """YaRN context extension factor (`rotary_scaling_factor`)."""
    yarn_original_max_position_embeddings: int = 4096
    """YaRN: context length of the original training."""
    yarn_beta_fast: float = 32.0
    """YaRN: rotations above which a frequency is left alone."""
    yarn_beta_slow: float = 1.0
    """YaRN: rotations below which a frequency is interpolated fully."""
    yarn_mscale: float | None = 1.0
    """YaRN attention temperature."""
    yarn_mscale_all_dim: float | None = 1.0
    """YaRN attention temperature on all dims."""
    yarn_correction_range_round_to_int: bool = True
    """YaRN: round the correction bounds to whole channels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """How fresh weights are drawn."""

    method_std: float = 0.02
    """Standard deviation of the normal draws; output projections use std/sqrt(2 x layers)."""
    xavier_uniform: bool = False
    """Xavier-uniform for every matrix instead, without the depth scaling."""
    perform: bool = True
    """False leaves memory as allocated (to be filled from a checkpoint)."""
    meta_device: bool = False
    """Build weights without memory and fill them unit by unit; needs sharded weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FusionConfig:
    """Which operations may use their fused form; equal results within rounding."""

    cross_entropy: bool = False
    """Output projection and cross entropy without the whole logits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """Degrees of parallelism; data parallelism is what the world size leaves."""

    tensor_model_parallel_size: int = 1
    """Ranks that share a layer's matrices."""
    pipeline_model_parallel_size: int = 1
    """Ranks that share the depth."""
    context_parallel_size: int = 1
    """Ranks that share a sequence."""
    cp_comm_type: tuple[ContextCommunication, ...] = ("p2p",)
    """How attention reaches the positions of other ranks: one way, or one for each layer."""
    hierarchical_context_parallel_sizes: tuple[int, int] | None = None
    """For `a2a+p2p`: ranks that exchange heads, and the length of the ring of such groups."""
    expert_model_parallel_size: int = 1
    """Ranks that share the experts."""
    sequence_parallel: bool = False
    """Norms and dropouts work on a slice of the sequence on each tensor-parallel rank."""
    num_distributed_optimizer_instances: int = 1
    """Groups of data-parallel ranks that each hold one whole optimizer state between them."""
    use_tp_pp_dp_mapping: bool = False
    """Rank order tp-cp-ep-pp-dp instead of tp-cp-ep-dp-pp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A decoder-only transformer under Megatron's names."""

    num_layers: int
    """Depth."""
    hidden_size: int
    """Width of the residual stream."""
    ffn_hidden_size: int
    """Width of the feed-forward layer (of each half for gated activations)."""
    seq_length: int
    """Tokens of a sequence."""
    vocab_size: int | None
    """Real vocabulary size; None is filled from the tokenizer before the model is built."""
    make_vocab_size_divisible_by: int = 128
    """The embedding has the next multiple of this x tensor-parallel size rows; the dummy rows never enter the softmax."""
    activation: Activation = "swiglu"
    """Feed-forward non-linearity; `swiglu` and `quick_geglu` are gated."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "RMSNorm"
    """Norm of the residual stream."""
    norm_epsilon: float = 1e-5
    """Epsilon of every norm."""
    layernorm_1p: bool = False
    """Store norm gains minus one."""
    add_bias_linear: bool = False
    """Biases on the output projection and both feed-forward matrices (the QKV bias has its own field)."""
    tie_embeddings: bool = False
    """The output projection is the embedding table."""
    hidden_dropout: float = 0.0
    """Dropout on the embedding and before each residual addition."""
    fp32_residual_connection: bool = False
    """Keep the residual stream in fp32 under bf16 and fp16."""
    residual_post_layernorm: bool = False
    """The residual is taken after the norm (`apply_residual_connection_post_layernorm`)."""
    attention: AttentionConfig
    """Attention."""
    moe: MoEConfig = field(default_factory=MoEConfig)
    """Sparse feed-forward layers."""
    position: PositionConfig
    """Positions."""
    init: InitConfig = field(default_factory=InitConfig)
    """Initialisation."""
    fusion: FusionConfig = field(default_factory=FusionConfig)
    """Fused forms."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Division over ranks."""
    tp_overlap: TPOverlapConfig = field(default_factory=TPOverlapConfig)
    """Products beside the communication of sequence parallelism."""
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    """Stages and their schedule."""
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    """What is computed twice."""
