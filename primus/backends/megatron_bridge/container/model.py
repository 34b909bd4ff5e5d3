"""`ModelProvider`: the model, its layout over ranks and what it computes again, under Megatron-Core's names.

Dtypes are names (`bf16`, `fp32`); an activation is the name of its function.
"""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelProvider"]


@dataclass(kw_only=True)
class _Parallel:
    """Ranks of the model."""

    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    pipeline_model_parallel_layout: Any = None
    pipeline_dtype: str | None = None
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    context_parallel_size: int = 1
    cp_comm_type: str | list[str] | None = None
    hierarchical_context_parallel_sizes: list[int] | None = None
    sequence_parallel: bool = False
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    microbatch_group_size_per_vp_stage: int | None = None
    overlap_p2p_comm: bool = False
    batch_p2p_comm: bool = True
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = 0
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    tp_comm_overlap: bool = False
    tp_comm_overlap_cfg: Any = None
    tp_comm_bootstrap_backend: str = "nccl"
    deterministic_mode: bool = False


@dataclass(kw_only=True)
class _Numerics:
    """Precision, recomputation, fusion."""

    fp16: bool = False
    bf16: bool = False
    params_dtype: str = "fp32"
    fp16_lm_cross_entropy: bool = False
    fp32_residual_connection: bool = False
    calculate_per_token_loss: bool = False
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: list[str] | None = None
    distribute_saved_activations: bool = False
    cross_entropy_loss_fusion: bool = True
    cross_entropy_fusion_impl: str = "te"
    apply_rope_fusion: bool = False
    masked_softmax_fusion: bool = False
    bias_activation_fusion: bool = False
    bias_dropout_fusion: bool = False
    gradient_accumulation_fusion: bool = True
    attention_backend: str = "auto"
    attention_softmax_in_fp32: bool = True
    apply_query_key_layer_scaling: bool = False
    init_method_std: float = 0.02
    perform_initialization: bool = True


@dataclass(kw_only=True)
class _Experts:
    """Mixtures of experts."""

    num_moe_experts: int | None = None
    moe_layer_freq: int | str | list[int] = 1
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_overlap: bool = False
    moe_shared_expert_gate: bool = False
    moe_grouped_gemm: bool = False
    moe_router_topk: int = 2
    moe_router_pre_softmax: bool = False
    moe_router_score_function: str = "softmax"
    moe_router_dtype: str | None = None
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    moe_router_topk_scaling_factor: float | None = None
    moe_router_enable_expert_bias: bool = False
    moe_router_bias_update_rate: float = 1e-3
    moe_router_load_balancing_type: str | list[str] = "aux_loss"
    moe_router_force_load_balancing: bool = False
    moe_aux_loss_coeff: float | list[float] = 0.0
    moe_z_loss_coeff: float | None = None
    moe_input_jitter_eps: float | None = None
    moe_token_dispatcher_type: str = "allgather"
    moe_flex_dispatcher_backend: str | None = None
    moe_permute_fusion: bool = False
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_token_drop_policy: str = "probs"
    moe_per_layer_logging: bool = False
    router_logit_softcapping: float | None = None


@dataclass(kw_only=True)
class _Mixers:
    """State-space and linear layers, and which layers are what."""

    is_hybrid_model: bool = False
    hybrid_attention_ratio: float = 0.0
    hybrid_mlp_ratio: float = 0.0
    hybrid_override_pattern: str | None = None
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None
    mamba_expand: int = 2
    mamba_d_conv: int = 4
    experimental_attention_variant: str | None = None
    linear_attention_freq: int | str | list[int] | None = None
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    lfm_layer_types: list[str] | None = None


@dataclass(kw_only=True)
class _Attention:
    """Attention and positions."""

    num_attention_heads: int | None = None
    num_query_groups: int | None = None
    kv_channels: int | None = None
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    qk_l2_norm: bool = False
    qk_norm_type: str = "per_head"
    attention_output_gate: bool = False
    attention_dropout: float = 0.1
    attn_logit_softcapping: float | None = None
    use_sink_attention: bool = False
    window_size: list[int] | None = None
    window_attn_skip_freq: int | str | list[int] | None = None
    attention_chunk_size: int | None = None
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    position_embedding_type: str = "learned_absolute"
    max_position_embeddings: int | None = None
    original_max_position_embeddings: int | None = None
    rope_type: str | None = None
    rotary_base: float = 10000
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    seq_len_interpolation_factor: float | None = None
    rope_scaling: bool = False
    rope_scaling_factor: float = 8.0
    rotary_scaling_factor: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    yarn_correction_range_round_to_int: bool = True
    no_rope_freq: int | str | list[int] | None = None
    attn_temperature_scale: float = 0.0
    attn_temperature_floor: int = 8192


@dataclass(kw_only=True)
class ModelProvider(_Attention, _Experts, _Mixers, _Numerics, _Parallel):
    """A decoder-only model."""

    model_type: str = "gpt"
    num_layers: int | None = None
    hidden_size: int | None = None
    ffn_hidden_size: int | None = None
    vocab_size: int | None = None
    should_pad_vocab: bool = False
    make_vocab_size_divisible_by: int = 128
    seq_length: int | None = None
    share_embeddings_and_output_weights: bool = True
    add_bias_linear: bool = True
    gated_linear_unit: bool = False
    activation_func: str = "gelu"
    activation_func_clamp_value: float | None = None
    glu_linear_offset: float = 0.0
    normalization: str = "LayerNorm"
    layernorm_epsilon: float = 1e-5
    layernorm_zero_centered_gamma: bool = False
    apply_residual_connection_post_layernorm: bool = False
    post_self_attn_layernorm: bool = False
    post_mlp_layernorm: bool = False
    hidden_dropout: float = 0.1
    final_logit_softcapping: float | None = None
    mtp_num_layers: int | None = None
    mtp_loss_scaling_factor: float | None = None
    hf_model_id: str | None = None
    generation_config: Any = field(default=None)
