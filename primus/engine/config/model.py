"""The decoder: widths, parts, positions, initialisation, and how it is divided over ranks."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count, repeat
from typing import Literal

from primus.engine.config.attention import AttentionConfig
from primus.engine.config.blocks import BlocksConfig, FeedForward, LayerKind, Mixing
from primus.engine.config.delta import DeltaConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.mtp import MTPConfig
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.config.position import PositionConfig
from primus.engine.config.recompute import RecomputeConfig
from primus.engine.config.ssm import MambaConfig
from primus.engine.config.tp_overlap import TPOverlapConfig

__all__ = [
    "GATED_ACTIVATIONS",
    "Activation",
    "FusionConfig",
    "InitConfig",
    "ModelConfig",
    "ParallelConfig",
]

Activation = Literal["swiglu", "gelu", "gelu_tanh", "quick_geglu", "squared_relu"]
GATED_ACTIVATIONS: tuple[Activation, ...] = ("swiglu", "quick_geglu")
"""They multiply two halves, so the first feed-forward matrix has twice the rows."""
ContextCommunication = Literal["p2p", "a2a", "allgather", "a2a+p2p"]


@dataclass(frozen=True, kw_only=True, slots=True)
class InitConfig:
    """How fresh weights are drawn."""

    method_std: float = 0.02
    """Standard deviation of the normal draws; output projections use std/sqrt(additions x layers)."""
    additions_per_layer: int = 2
    """What a layer adds to the residual stream, for that rule."""
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
    attention: bool = False
    """Causal attention without dropout by a kernel of this house where the device has one; else torch's are used."""
    rms_norm: bool = False
    """RMSNorm by its kernel where the device has one."""
    weighted_activation: bool = False
    """Activation and routing weight of experts by one kernel where the device has one."""
    grouped_gemm: bool = False
    """Products of experts by one kernel where the device has one."""


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
    expert_tensor_parallel_size: int | None = None
    """Ranks that share an expert's matrices; None: as many as share a layer's."""
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
    activation_clamp: float | None = None
    """Gated: the gate is cut off above it, the other half on both sides; None: neither."""
    glu_linear_offset: float = 0.0
    """Gated: added to the half that is not the gate."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "RMSNorm"
    """Norm of the residual stream."""
    norm_epsilon: float = 1e-5
    """Epsilon of every norm."""
    post_attention_norm: bool = False
    """What attention, or what stands in its place, gives passes a norm before it is added."""
    post_mlp_norm: bool = False
    """What the feed-forward part gives passes a norm before it is added."""
    layernorm_1p: bool = False
    """Store norm gains minus one."""
    add_bias_linear: bool = False
    """Biases on the output projection, both feed-forward matrices, experts' too, and routers (QKV bias: its own field)."""
    tie_embeddings: bool = False
    """The output projection is the embedding table."""
    hidden_dropout: float = 0.0
    """Dropout on the embedding and before each residual addition."""
    fp32_residual_connection: bool = False
    """Keep the residual stream in fp32 under bf16 and fp16."""
    final_logit_softcapping: float | None = None
    """Bound of the logits, in training and in generation; None: none."""
    residual_post_layernorm: bool = False
    """The residual is taken after the norm (`apply_residual_connection_post_layernorm`)."""
    attention: AttentionConfig
    """Attention."""
    moe: MoEConfig = field(default_factory=MoEConfig)
    """Sparse feed-forward layers."""
    mtp: MTPConfig = field(default_factory=MTPConfig)
    """Prediction of tokens further ahead."""
    mamba: MambaConfig = field(default_factory=MambaConfig)
    """State-space layers."""
    delta: DeltaConfig = field(default_factory=DeltaConfig)
    """Gated delta nets."""
    blocks: BlocksConfig = field(default_factory=BlocksConfig)
    """What stands in which layer."""
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

    def ffn_width(self, number: int) -> int:
        """Return the width of a layer's dense feed-forward part."""
        return self.blocks.ffn_hidden_size[number] if self.blocks.ffn_hidden_size else self.ffn_hidden_size

    def layer_kinds(self) -> list[LayerKind]:
        """Return what stands in each layer. There are few kinds and may be very many layers: count what a kind has once."""
        blocks, sparse = self.blocks, frozenset(self.moe.layers)
        mixing: Iterable[Mixing] = blocks.mixing or repeat("attention", self.num_layers)
        feed_forward: Iterable[FeedForward] = blocks.feed_forward or repeat("mlp")
        widths = blocks.ffn_hidden_size or repeat(self.ffn_hidden_size)
        return list(map(LayerKind, mixing, feed_forward, map(sparse.__contains__, count()), widths))
