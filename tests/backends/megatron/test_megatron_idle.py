"""A key that the user set and that cannot act says so in one line, and names what keeps it idle."""

import math
from pathlib import Path
from typing import Any

import pytest

from primus.backends.megatron.idle import IDLE

Values = dict[str, Any]

COMMUNICATORS = str(Path(__file__).parents[2] / "data" / "megatron" / "communicators.yaml")

SAMPLES: Values = {"train_iters": None, "train_samples": 48}
FILES: Values = {"mock_data": False, "data_path": "a", "split": "1,0,0"}
PLAIN_GELU: Values = {"swiglu": False, "add_bias_linear": True}
FP16: Values = {"fp16": True}
WANDB: Values = {"disable_wandb": False}
NCCL: Values = {"distributed_backend": "nccl"}
MLFLOW: Values = {"disable_mlflow": False}
TENSORBOARD: Values = {"disable_tensorboard": False}
TRACE: Values = {"profile": True, "use_pytorch_profiler": True}
PIPELINE: Values = {"pipeline_model_parallel_size": 2}
CONTEXT: Values = {"context_parallel_size": 4, "cp_comm_type": "a2a+p2p"}
PRIMUS_PIPELINE: Values = {**PIPELINE, "patch_primus_pipeline": True, "pp_algorithm": "1f1b"}
SENT_IN_SHARES: Values = {**PIPELINE, "tensor_model_parallel_size": 2, "sequence_parallel": False}
ZERO_BUBBLE: Values = {
    **PIPELINE,
    "patch_zero_bubble": True,
    "enable_zero_bubble": True,
    "zero_bubble_v_schedule": False,
    "zero_bubble_max_pending_backward": "auto",
    "zero_bubble_pipeline_timers_start_iter": 10,
}
CHUNKS = "num_virtual_stages_per_pipeline_rank"
GROUPED: Values = {**ZERO_BUBBLE, "enable_zero_bubble": False, CHUNKS: 2}
FOLDED: Values = {**ZERO_BUBBLE, "zero_bubble_v_schedule": True}
V_HALF: Values = {**PRIMUS_PIPELINE, "pp_algorithm": "v-half"}
OFFLOADED: Values = {**GROUPED, "cpu_offload": True, "offload_chunk_num": 1}
RECOMPUTED: Values = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OVERLAP: Values = {"overlap_grad_reduce": True}
TP_OVERLAP: Values = {
    "tensor_model_parallel_size": 2,
    "sequence_parallel": True,
    "tp_comm_overlap": True,
    "deterministic_mode": False,
}
FSDP: Values = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
WITH_STEP = "overlap_param_gather_with_optimizer_step"
STRATEGY = "data_parallel_sharding_strategy"
GATHERED: Values = {**OVERLAP, "overlap_param_gather": True}
THREE_CHUNKS: Values = {**PIPELINE, "num_layers": 6, CHUNKS: 3}
GATHERED_AHEAD: Values = {**FSDP, **GATHERED}
BUCKETS: Values = {"ddp_num_buckets": 2, "ddp_bucket_size": 999}
OPTIM: Values = {"data_parallel_sharding_strategy": "optim"}
WSD: Values = {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2}
YARN: Values = {"position_embedding_type": "yarn"}
SAVE: Values = {"save": "ckpt", "save_interval": 2}
LOAD: Values = {"load": "old"}
GLOBAL: Values = {"non_persistent_ckpt_type": "global"}
LOCAL: Values = {"non_persistent_ckpt_type": "local", "non_persistent_local_ckpt_dir": "node"}
REPLICATED: Values = {**SAVE, **LOCAL, "non_persistent_save_interval": 3, "replication": True, "replication_jump": 1}
HUGGING_FACE: Values = {**FILES, "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "m", "vocab_size": None}
BPE: Values = {**FILES, "tokenizer_type": "GPT2BPETokenizer", "vocab_file": "v", "merge_file": "m", "vocab_size": None}
WORD_PIECE: Values = {**FILES, "tokenizer_type": "BertWordPieceCase", "vocab_file": "v", "vocab_size": None}
TIK: Values = {**FILES, "tokenizer_type": "TikTokenizer", "tokenizer_model": "m", "vocab_size": 4096}

FSDP2: Values = {"use_torch_fsdp2": True}

MOE: Values = {"num_experts": 4}
EXPERT_RANKS: Values = {**MOE, "expert_model_parallel_size": 2}
SIGMOID: Values = {**MOE, "moe_router_score_function": "sigmoid"}
SINKHORN: Values = {"moe_router_load_balancing_type": "sinkhorn"}
UNBALANCED: Values = {"moe_router_load_balancing_type": "none"}

UNEVEN = Path(__file__).parents[2] / "data/megatron/uneven_layers.json"

MAMBA: Values = {"model_type": "mamba", "mamba_head_dim": 8}
DELTA: Values = {"experimental_attention_variant": "gated_delta_net"}
HYBRID: Values = {**MAMBA, "is_hybrid_model": True}

MLA: Values = {"multi_latent_attention": True, "position_embedding_type": "rope"}
ROTATED: Values = {"position_embedding_type": "rope"}

SINKS: Values = {"use_sink_attention": True}

TURBO: Values = {"enable_primus_turbo": True}
GROUPED_TURBO: Values = {**TURBO, "moe_grouped_gemm": True, "use_turbo_grouped_gemm": True}
TURBO_MOE: Values = {**TURBO, **MOE, "moe_grouped_gemm": True}

CASES: list[tuple[Values, Values, Values, str]] = [
    (TURBO, {}, {"use_turbo_rms_norm": True}, "turbo_sync_free_moe_stage"),
    ({"use_turbo_attention": True}, {}, TURBO, "enable_primus_turbo"),
    ({"use_turbo_attention": True}, {**TURBO, "attention_dropout": 0.1}, TURBO, "attention_dropout"),
    ({"use_turbo_attention": True}, {**TURBO, "attention_backend": "unfused"}, TURBO, "attention_backend"),
    ({"use_turbo_attention": True}, {**TURBO, "use_sink_attention": True}, TURBO, "use_sink_attention"),
    ({"use_turbo_attention": True}, {**TURBO, "context_parallel_size": 2}, TURBO, "cp_comm_type"),
    ({"use_turbo_attention": True}, {**TURBO, **MAMBA}, TURBO, "model_type"),
    (
        {"use_turbo_attention": True},
        {**TURBO, "window_size": [4, 0]},
        {**TURBO, "window_size": [4, 0], "window_attn_skip_freq": 2},
        "window_size",
    ),
    ({"turbo_sync_free_moe_stage": 2}, GROUPED_TURBO, {**GROUPED_TURBO, **EXPERT_RANKS}, "num_experts"),
    ({"use_turbo_rms_norm": True}, {}, TURBO, "enable_primus_turbo"),
    ({"use_turbo_rms_norm": True}, {**TURBO, "normalization": "LayerNorm"}, TURBO, "normalization"),
    ({"use_turbo_fused_act_with_probs": True}, MOE, TURBO_MOE, "enable_primus_turbo"),
    ({"use_turbo_fused_act_with_probs": True}, TURBO, TURBO_MOE, "num_experts"),
    ({"use_turbo_fused_act_with_probs": True}, {**TURBO, **MOE, "swiglu": False}, TURBO_MOE, "quick_geglu"),
    ({"use_turbo_grouped_gemm": True}, MOE, TURBO_MOE, "enable_primus_turbo"),
    ({"use_turbo_grouped_gemm": True}, TURBO, TURBO_MOE, "num_experts"),
    ({"use_turbo_grouped_gemm": True}, {**TURBO, **MOE, "moe_grouped_gemm": False}, TURBO_MOE, "moe_grouped_gemm"),
    ({"sink_sliding_window": 4}, {}, SINKS, "use_sink_attention"),
    ({"sink_window_even_layers_only": False}, {**SINKS}, {**SINKS, "sink_sliding_window": 4}, "sink_sliding_window"),
    ({"qk_norm_type": "per_layer"}, {}, {"qk_layernorm": True}, "qk_layernorm"),
    ({"qk_norm_type": "per_layer"}, {"qk_layernorm": True, "qk_l2_norm": True}, {"qk_layernorm": True}, "qk_l2_norm"),
    ({"apply_wd_to_qk_layernorm": True}, {}, {"qk_layernorm": True}, "qk_layernorm"),
    ({"window_attn_skip_freq": 2}, {}, {"window_size": [3, 0]}, "window_size"),
    ({"attn_temperature_scale": 0.1}, {}, {**ROTATED, "no_rope_freq": 2}, "no_rope_freq"),
    ({"attn_temperature_floor": 4}, {}, {**ROTATED, "no_rope_freq": 2, "attn_temperature_scale": 0.1}, "no_rope_freq"),
    (
        {"attn_temperature_floor": 4},
        {**ROTATED, "no_rope_freq": 2},
        {**ROTATED, "no_rope_freq": 2, "attn_temperature_scale": 0.1},
        "attn_temperature_scale",
    ),
    ({"q_lora_rank": 8}, {}, MLA, "multi_latent_attention"),
    ({"kv_lora_rank": 8}, {}, MLA, "multi_latent_attention"),
    ({"qk_head_dim": 8}, {}, MLA, "multi_latent_attention"),
    ({"qk_pos_emb_head_dim": 8}, {}, MLA, "multi_latent_attention"),
    ({"v_head_dim": 8}, {}, MLA, "multi_latent_attention"),
    ({"rope_type": "rope"}, {}, MLA, "multi_latent_attention"),
    ({"kv_channels": 8}, MLA, {}, "multi_latent_attention"),
    ({"add_qkv_bias": True}, MLA, {}, "multi_latent_attention"),
    ({"rotary_scaling_factor": 4.0}, {**MLA, "rope_type": "rope"}, MLA, "rope_type"),
    ({"mscale_all_dim": 0.5}, {**MLA, "rope_type": "rope"}, MLA, "rope_type"),
    ({"moe_layer_freq": 2}, {}, MOE, "num_experts"),
    (
        {"overlap_moe_expert_parallel_comm": True},
        {"moe_token_dispatcher_type": "alltoall"},
        {**EXPERT_RANKS, "moe_token_dispatcher_type": "alltoall"},
        "num_experts",
    ),
    ({"use_turbo_deepep": True}, EXPERT_RANKS, {**EXPERT_RANKS, "enable_primus_turbo": True}, "enable_primus_turbo"),
    ({"moe_layer_recompute": True}, {}, MOE, "num_experts"),
    ({"moe_layer_recompute": True}, {**MOE, **RECOMPUTED}, MOE, "recompute_granularity"),
    ({"moe_layer_freq": 2}, {**HYBRID, **MOE, "hybrid_override_pattern": "ME-*"}, MOE, "model_type"),
    (
        {"heterogeneous_layers_config_path": str(UNEVEN)},
        {"heterogeneous_layers_config_encoded_json": UNEVEN.read_text(encoding="utf-8")},
        {},
        "heterogeneous_layers_config_encoded_json",
    ),
    ({"window_size": [4, 0]}, MAMBA, {}, "no layer has attention, model_type"),
    ({"attention_chunk_size": 8}, DELTA, {**DELTA, "linear_attention_freq": 2}, "experimental_attention_variant"),
    ({"use_sink_attention": True}, {"lfm_layer_types": ["conv"] * 4}, {}, "lfm_layer_types"),
    ({"attn_logit_softcapping": 30.0}, MAMBA, {}, "model_type"),
    ({"multi_latent_attention": True}, MAMBA, {}, "model_type"),
    ({"attention_output_gate": True}, MAMBA, {}, "model_type"),
    ({"post_self_attn_layernorm": True}, MAMBA, {}, "model_type"),
    ({"no_rope_freq": 2}, MAMBA, {}, "model_type"),
    ({"mamba_state_dim": 16}, {}, MAMBA, "model_type"),
    ({"mamba_head_dim": 8}, {}, MAMBA, "model_type"),
    ({"mamba_num_groups": 2}, {}, MAMBA, "model_type"),
    ({"mamba_num_heads": 16}, {}, MAMBA, "model_type"),
    ({"mamba_d_conv": 2}, {}, MAMBA, "model_type"),
    ({"mamba_expand": 4}, {}, MAMBA, "model_type"),
    ({"mamba_state_dim": 16}, {**MAMBA, **DELTA}, MAMBA, "experimental_attention_variant"),
    ({"linear_conv_kernel_dim": 2}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_key_head_dim": 8}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_value_head_dim": 8}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_num_key_heads": 8}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_num_value_heads": 16}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_attention_freq": 2}, {}, DELTA, "experimental_attention_variant"),
    ({"linear_attention_freq": 2}, {**MAMBA, **DELTA}, DELTA, "model_type"),
    ({"mamba_expand": 4}, {**MAMBA, "mamba_num_heads": 8}, MAMBA, "mamba_num_heads"),
    ({"is_hybrid_model": True}, {}, MAMBA, "model_type"),
    ({"hybrid_override_pattern": "M*M-"}, {"is_hybrid_model": True}, HYBRID, "model_type"),
    ({"hybrid_override_pattern": "M*M-"}, MAMBA, HYBRID, "is_hybrid_model"),
    ({"hybrid_attention_ratio": 0.5}, {}, HYBRID, "model_type"),
    ({"hybrid_mlp_ratio": 0.25}, MAMBA, HYBRID, "is_hybrid_model"),
    ({"hybrid_attention_ratio": 0.5}, {**HYBRID, "hybrid_override_pattern": "M*M-"}, HYBRID, "hybrid_override_pattern"),
    ({"mtp_loss_scaling_factor": 0.3}, {}, {"mtp_num_layers": 1}, "mtp_num_layers"),
    ({"moe_ffn_hidden_size": 16}, {}, MOE, "num_experts"),
    ({"moe_shared_expert_intermediate_size": 16}, {}, MOE, "num_experts"),
    ({"moe_use_upcycling": True}, {}, {**MOE, "load": "dense", "save": "c", "save_interval": 1}, "num_experts"),
    (
        {"moe_shared_expert_gate": True},
        MOE,
        {**MOE, "moe_shared_expert_intermediate_size": 16},
        "moe_shared_expert_intermediate_size",
    ),
    ({"moe_router_topk": 3}, {}, MOE, "num_experts"),
    ({"moe_router_dtype": "fp64"}, {}, MOE, "num_experts"),
    ({"moe_input_jitter_eps": 0.1}, {}, MOE, "num_experts"),
    ({"router_logit_softcapping": 30.0}, {}, MOE, "num_experts"),
    ({"moe_grouped_gemm": True}, {}, MOE, "num_experts"),
    ({"moe_router_load_balancing_type": "seq_aux_loss"}, {}, {**MOE, "moe_aux_loss_coeff": 0.1}, "num_experts"),
    ({"moe_router_load_balancing_type": "seq_aux_loss"}, MOE, {**MOE, "moe_aux_loss_coeff": 0.1}, "moe_aux_loss_coeff"),
    ({"moe_aux_loss_coeff": 0.1}, {}, MOE, "num_experts"),
    ({"moe_aux_loss_coeff": 0.1}, {**MOE, **UNBALANCED}, MOE, "moe_router_load_balancing_type"),
    ({"moe_z_loss_coeff": 0.1}, {}, MOE, "num_experts"),
    ({"moe_expert_capacity_factor": 1.5}, {}, MOE, "num_experts"),
    ({"moe_router_force_load_balancing": True}, {}, MOE, "num_experts"),
    ({"expert_tensor_parallel_size": 2}, {}, MOE, "num_experts"),
    ({"moe_token_dispatcher_type": "alltoall"}, {}, EXPERT_RANKS, "num_experts"),
    ({"moe_token_dispatcher_type": "alltoall"}, MOE, EXPERT_RANKS, "expert_model_parallel_size"),
    (
        {"moe_shared_expert_overlap": True, "moe_token_dispatcher_type": "alltoall"},
        {**EXPERT_RANKS, "moe_shared_expert_intermediate_size": None},
        {**EXPERT_RANKS, "moe_shared_expert_intermediate_size": 16},
        "moe_shared_expert_intermediate_size",
    ),
    ({"moe_router_score_function": "sigmoid"}, {}, MOE, "num_experts"),
    ({"moe_router_score_function": "sigmoid"}, {**MOE, **SINKHORN}, MOE, "moe_router_load_balancing_type"),
    ({"moe_router_topk_scaling_factor": 2.0}, {}, MOE, "num_experts"),
    ({"moe_router_enable_expert_bias": True}, {}, SIGMOID, "num_experts"),
    ({"moe_router_pre_softmax": True}, {}, MOE, "num_experts"),
    ({"moe_router_pre_softmax": True}, SIGMOID, MOE, "moe_router_score_function"),
    ({"moe_router_group_topk": 2, "moe_router_num_groups": 2}, {}, MOE, "num_experts"),
    ({"moe_router_num_groups": 2}, MOE, {**MOE, "moe_router_group_topk": 2}, "moe_router_group_topk"),
    (
        {"moe_router_bias_update_rate": 0.1},
        MOE,
        {**SIGMOID, "moe_router_enable_expert_bias": True},
        "moe_router_enable_expert_bias",
    ),
    ({"moe_token_drop_policy": "position"}, MOE, {**MOE, "moe_expert_capacity_factor": 1.0}, "moe_expert_capacity_factor"),
    ({"moe_pad_expert_input_to_capacity": True}, {}, {**MOE, "moe_expert_capacity_factor": 1.0}, "num_experts"),
    ({"moe_per_layer_logging": True}, MOE, {**MOE, "moe_aux_loss_coeff": 0.1}, "moe_aux_loss_coeff"),
    (
        {"moe_per_layer_logging": True},
        {**MOE, **UNBALANCED, "moe_aux_loss_coeff": 0.1},
        {**MOE, **UNBALANCED, "moe_z_loss_coeff": 0.1},
        "moe_router_load_balancing_type",
    ),
    (
        {"moe_router_force_load_balancing_type": "uniform"},
        MOE,
        {**MOE, "moe_router_force_load_balancing": True},
        "moe_router_force_load_balancing",
    ),
    ({"disable_primus_topk_router": True}, MOE, {**MOE, "router_logit_softcapping": 3.0}, "router_logit_softcapping"),
    ({"ddp_num_buckets": 2}, {**FSDP2, **OVERLAP}, OVERLAP, "use_torch_fsdp2"),
    ({"ddp_bucket_size": 999}, {**FSDP2, **OVERLAP}, OVERLAP, "use_torch_fsdp2"),
    ({"overlap_grad_reduce": True}, FSDP2, {}, "use_torch_fsdp2"),
    ({"overlap_param_gather": True}, FSDP2, OVERLAP, "use_torch_fsdp2"),
    ({"ddp_average_in_collective": True}, FSDP2, {}, "use_torch_fsdp2"),
    ({"stderr_sink_level": "DEBUG"}, {"sink_level": "INFO"}, {}, "sink_level"),
    ({"pipeline_model_parallel_comm_backend": "nccl"}, {}, PIPELINE, "pipeline_model_parallel_size"),
    ({"high_priority_stream_groups": ["dp_cp"]}, {"distributed_backend": "gloo"}, NCCL, "distributed_backend"),
    ({"nccl_communicator_config_path": COMMUNICATORS}, {"distributed_backend": "gloo"}, NCCL, "distributed_backend"),
    ({"non_persistent_save_interval": 4}, {**SAVE, **GLOBAL}, {**SAVE, **GLOBAL, "save_interval": 8}, "save_interval"),
    ({"non_persistent_ckpt_type": "global"}, {}, {**SAVE, "auto_continue_train": True}, "non_persistent_save_interval"),
    (
        {"non_persistent_ckpt_type": "global"},
        {"load": "old", "finetune": True},
        {"load": "old", "finetune": False},
        "non_persistent_save_interval",
    ),
    ({"non_persistent_global_ckpt_dir": "scratch"}, SAVE, {**SAVE, **GLOBAL}, "non_persistent_ckpt_type"),
    ({"non_persistent_local_ckpt_dir": "node"}, SAVE, {**SAVE, **LOCAL}, "non_persistent_ckpt_type"),
    ({"non_persistent_local_ckpt_algo": "atomic"}, SAVE, {**SAVE, **LOCAL}, "non_persistent_ckpt_type"),
    (
        {"replication": True},
        {**SAVE, **LOCAL, "replication_jump": 1},
        {**SAVE, **LOCAL, "replication_jump": 1, "non_persistent_save_interval": 3},
        "non_persistent_save_interval",
    ),
    ({"replication_jump": 1}, SAVE, REPLICATED, "replication"),
    ({"replication_factor": 2}, SAVE, REPLICATED, "replication"),
    ({"stderr_sink_level": "DEBUG"}, {"logging_level": 20}, {}, "logging_level"),
    ({"file_sink_level": "INFO"}, {"sink_level": "INFO"}, {}, "sink_level"),
    (
        {"use_flash_attn": True},
        {"attention_backend": "unfused", "deterministic_mode": False},
        {"deterministic_mode": False},
        "attention_backend",
    ),
    ({"attention_backend": "flash"}, {"apply_query_key_layer_scaling": True}, {}, "apply_query_key_layer_scaling"),
    ({"init_method_std": 0.5}, {"init_method_xavier_uniform": True}, {}, "init_method_xavier_uniform"),
    ({"init_method_std": 0.5}, {"perform_initialization": False}, {}, "perform_initialization"),
    ({"init_method_xavier_uniform": True}, {"perform_initialization": False}, {}, "perform_initialization"),
    ({"eval_interval": 2}, {"eval_iters": 0}, {"eval_iters": 1}, "eval_iters"),
    ({"eval_interval": 2}, {"eval_iters": 0}, {"full_validation": True}, "eval_iters"),
    ({"manual_gc_interval": 5}, {}, {"manual_gc": True}, "manual_gc"),
    ({"manual_gc_eval": True}, {}, {"manual_gc": True}, "manual_gc"),
    ({"loss_scale": 8.0}, {"use_distributed_optimizer": False}, FP16, "bf16"),
    ({"initial_loss_scale": 64.0}, {}, FP16, "fp16"),
    ({"min_loss_scale": 2.0}, {}, FP16, "fp16"),
    ({"loss_scale_window": 10}, {}, FP16, "fp16"),
    ({"hysteresis": 3}, {}, FP16, "fp16"),
    ({"initial_loss_scale": 64.0}, {"fp16": True, "loss_scale": 8.0}, FP16, "loss_scale"),
    ({"grad_reduce_in_bf16": True}, {}, {"bf16": True}, "bf16"),
    ({"accumulate_allreduce_grads_in_fp32": True}, {"bf16": True, "grad_reduce_in_bf16": True}, FP16, "grad_reduce_in_bf16"),
    ({"min_lr": 5.0e-4}, {"lr_decay_style": "constant"}, {}, "lr_decay_style"),
    ({"lr_decay_iters": 4}, {"lr_decay_style": "constant"}, {}, "lr_decay_style"),
    (
        {"lr_decay_iters": 4},
        {"lr_decay_style": "constant"},
        {"lr_decay_style": "constant", "lr_warmup_fraction": 0.5},
        "lr_decay_style",
    ),
    ({"lr_decay_samples": 40}, {**SAMPLES, "lr_decay_style": "constant"}, SAMPLES, "lr_decay_style"),
    ({"lr_warmup_init": 1.0e-5}, {}, {"lr_warmup_iters": 2}, "lr_warmup_iters"),
    ({"lr_warmup_init": 1.0e-5}, SAMPLES, {"lr_warmup_fraction": 0.5}, "lr_warmup_samples"),
    ({"lr_wsd_decay_style": "linear"}, {}, WSD, "lr_decay_style"),
    ({"lr_wsd_decay_iters": 2}, {}, WSD, "lr_decay_style"),
    ({"lr_wsd_decay_samples": 8}, SAMPLES, {**SAMPLES, "lr_decay_style": "WSD"}, "lr_decay_style"),
    (
        {"weight_decay": 0.1},
        {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.1},
        {},
        "weight_decay_incr_style",
    ),
    *(({key: 0.5}, {"optimizer": "sgd"}, {}, "optimizer") for key in ("adam_beta1", "adam_beta2", "adam_eps")),
    ({"sgd_momentum": 0.5}, {}, {"optimizer": "sgd"}, "optimizer"),
    ({"decoupled_min_lr": 1.0e-5}, {}, {"decoupled_lr": 1.0e-3}, "decoupled_lr"),
    ({"override_opt_param_scheduler": True}, {}, LOAD, "load"),
    ({"override_opt_param_scheduler": True}, {**LOAD, "finetune": True}, {**SAVE, "auto_continue_train": True}, "finetune"),
    ({"use_checkpoint_opt_param_scheduler": True, "override_opt_param_scheduler": False}, {}, LOAD, "load"),
    *(({key: value}, {}, OVERLAP, "overlap_grad_reduce") for key, value in BUCKETS.items()),
    *(({key: value}, {**FSDP, **OVERLAP}, OVERLAP, "data_parallel_sharding_strategy") for key, value in BUCKETS.items()),
    ({"align_grad_reduce": False}, OVERLAP, {**PIPELINE, **OVERLAP}, "pipeline_model_parallel_size"),
    ({"align_grad_reduce": False}, PIPELINE, {**PIPELINE, **OVERLAP}, "overlap_grad_reduce"),
    ({"align_grad_reduce": False}, {**FSDP, **PIPELINE, **OVERLAP}, {**PIPELINE, **OVERLAP}, "data_parallel_sharding_strategy"),
    ({"align_param_gather": False}, GATHERED, {**GATHERED, **THREE_CHUNKS}, "pipeline_model_parallel_size"),
    ({"align_param_gather": False}, {**GATHERED, **PIPELINE}, {**GATHERED, **THREE_CHUNKS}, CHUNKS),
    ({"align_param_gather": False}, THREE_CHUNKS, {**GATHERED, **THREE_CHUNKS}, "overlap_param_gather"),
    ({"align_param_gather": False}, {**FSDP, **GATHERED, **THREE_CHUNKS}, {**GATHERED, **THREE_CHUNKS}, STRATEGY),
    ({WITH_STEP: True}, {**FSDP, **GATHERED, **THREE_CHUNKS}, {**GATHERED, **THREE_CHUNKS}, STRATEGY),
    ({"use_megatron_fsdp": True}, {}, {"data_parallel_sharding_strategy": "optim"}, "data_parallel_sharding_strategy"),
    ({"use_custom_fsdp": True}, {}, {"data_parallel_sharding_strategy": "optim"}, "data_parallel_sharding_strategy"),
    ({"data_parallel_sharding_strategy": "optim"}, {}, {"use_custom_fsdp": True}, "use_megatron_fsdp"),
    ({"gradient_reduce_div_fusion": False}, {}, FSDP, "use_megatron_fsdp"),
    ({"gradient_reduce_div_fusion": False}, {**FSDP, **OPTIM}, FSDP, "data_parallel_sharding_strategy"),
    ({"gradient_reduce_div_fusion": False}, {**FSDP, "ddp_average_in_collective": True}, FSDP, "ddp_average_in_collective"),
    ({"suggested_communication_unit_size": 9}, {}, GATHERED_AHEAD, "use_megatron_fsdp"),
    ({"suggested_communication_unit_size": 9}, {**FSDP, **OPTIM}, GATHERED_AHEAD, "data_parallel_sharding_strategy"),
    ({"suggested_communication_unit_size": 9}, FSDP, GATHERED_AHEAD, "overlap_param_gather"),
    ({"ddp_pad_buckets_for_high_nccl_busbw": True}, {"use_distributed_optimizer": False}, {}, "use_distributed_optimizer"),
    *(
        ({key: True}, {}, PIPELINE, "pipeline_model_parallel_size")
        for key in (
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "allow_padding_num_layers",
            "use_tp_pp_dp_mapping",
        )
    ),
    *(
        ({key: True}, {}, PIPELINE, "pipeline_model_parallel_size")
        for key in ("pre_communication_optimization", "pp_warmup", "dump_pp_data")
    ),
    ({"scatter_gather_tensors_in_pipeline": False}, {}, SENT_IN_SHARES, "pipeline_model_parallel_size"),
    ({"scatter_gather_tensors_in_pipeline": False}, PIPELINE, SENT_IN_SHARES, "tensor_model_parallel_size"),
    (
        {"scatter_gather_tensors_in_pipeline": False},
        {**SENT_IN_SHARES, "sequence_parallel": True},
        SENT_IN_SHARES,
        "sequence_parallel",
    ),
    ({"delay_wgrad_compute": True}, {}, PIPELINE, "pipeline_model_parallel_size"),
    ({"delay_wgrad_compute": True}, ZERO_BUBBLE, PRIMUS_PIPELINE, "patch_zero_bubble"),
    ({"delay_wgrad_compute": True}, {**PRIMUS_PIPELINE, "pp_algorithm": "v-half"}, PIPELINE, "patch_primus_pipeline"),
    (
        {"wgrad_deferral_limit": 2},
        PIPELINE,
        {**PIPELINE, "defer_embedding_wgrad_compute": True},
        "defer_embedding_wgrad_compute",
    ),
    ({"zero_bubble_v_schedule": True}, {}, ZERO_BUBBLE, "patch_zero_bubble"),
    ({"enable_1f1b_v": True}, {}, {**ZERO_BUBBLE, "enable_zero_bubble": False}, "patch_zero_bubble"),
    ({"interleave_group_size": 2}, {}, GROUPED, "patch_zero_bubble"),
    ({"interleave_group_size": 2}, ZERO_BUBBLE, GROUPED, "enable_zero_bubble"),
    ({"interleave_group_size": 2}, {**GROUPED, CHUNKS: 1}, GROUPED, CHUNKS),
    ({"enable_zero_bubble": False}, {}, ZERO_BUBBLE, "patch_zero_bubble"),
    ({"enable_zero_bubble": False}, FOLDED, ZERO_BUBBLE, "zero_bubble_v_schedule"),
    ({"enable_zero_bubble": False}, {**ZERO_BUBBLE, "num_seq_splits": 2}, ZERO_BUBBLE, "num_seq_splits"),
    (
        {"enable_optimizer_post_validation": True},
        {**ZERO_BUBBLE, "exit_signal_handler": True},
        ZERO_BUBBLE,
        "exit_signal_handler",
    ),
    (
        {"enable_exactly_numeric_match": False},
        ZERO_BUBBLE,
        {**ZERO_BUBBLE, "enable_optimizer_post_validation": True},
        "enable_optimizer_post_validation",
    ),
    ({"zero_bubble_max_pending_backward": 4}, {**ZERO_BUBBLE, "num_seq_splits": 2}, ZERO_BUBBLE, "num_seq_splits"),
    ({"zero_bubble_v_schedule_mem_setup": "min"}, {}, FOLDED, "patch_zero_bubble"),
    ({"zero_bubble_v_schedule_mem_setup": "min"}, ZERO_BUBBLE, FOLDED, "zero_bubble_v_schedule"),
    *(
        ({f"zero_bubble_{key}": 90}, idle, ZERO_BUBBLE, reason)
        for key in (
            "pipeline_timers_start_iter",
            "pipeline_timers_end_iter",
            "max_pending_backward",
            "adaptive_memory_limit_percentile",
        )
        for idle, reason in (({}, "patch_zero_bubble"), (FOLDED, "zero_bubble_v_schedule"))
    ),
    (
        {"zero_bubble_adaptive_memory_limit_percentile": 90},
        {**ZERO_BUBBLE, "zero_bubble_max_pending_backward": 4},
        ZERO_BUBBLE,
        "zero_bubble_max_pending_backward",
    ),
    ({"offload": True}, V_HALF, {**V_HALF, "offload_ops": "attn"}, "offload_ops"),
    ({"offload": True}, {**V_HALF, "offload_ops": "attn", **RECOMPUTED}, {**V_HALF, "offload_ops": "attn"}, "recompute_method"),
    ({"offload_ops": "attn"}, V_HALF, {**V_HALF, "offload": True}, "offload"),
    ({"offload_chunk_num": 1}, GROUPED, {**GROUPED, "cpu_offload": True}, "cpu_offload"),
    ({"auto_offload_time": False}, GROUPED, OFFLOADED, "cpu_offload"),
    ({"offload_overlap_sr": False}, GROUPED, OFFLOADED, "cpu_offload"),
    ({"offload_time": 0.1}, GROUPED, {**OFFLOADED, "auto_offload_time": False}, "cpu_offload"),
    ({"offload_time": 0.1}, OFFLOADED, {**OFFLOADED, "auto_offload_time": False}, "auto_offload_time"),
    ({"tp_comm_overlap_cfg": {"qkv_fprop": {}}}, {}, TP_OVERLAP, "tp_comm_overlap"),
    *(
        ({f"tp_comm_{key}": value}, {}, TP_OVERLAP, "tp_comm_overlap")
        for key, value in (
            ("overlap_rs_dgrad", True),
            ("bulk_wgrad", False),
            ("bulk_dgrad", False),
            ("overlap_ag", False),
            ("split_ag", False),
            ("overlap_rs", False),
            ("split_rs", False),
        )
    ),
    *(
        ({f"tp_comm_{key}": value}, {**TP_OVERLAP, f"tp_comm_{other}": off}, TP_OVERLAP, f"tp_comm_{other}")
        for key, value, other, off in (
            ("bulk_wgrad", False, "overlap_rs_dgrad", True),
            ("bulk_dgrad", False, "overlap_rs_dgrad", True),
            ("overlap_ag", False, "split_ag", False),
            ("split_ag", False, "overlap_ag", False),
            ("overlap_rs", False, "split_rs", False),
            ("split_rs", False, "overlap_rs", False),
        )
    ),
    ({"cp_comm_type": "a2a"}, {}, {"context_parallel_size": 2}, "context_parallel_size"),
    ({"hierarchical_context_parallel_sizes": [2, 2]}, {}, CONTEXT, "context_parallel_size"),
    ({"hierarchical_context_parallel_sizes": [2, 2]}, {**CONTEXT, "cp_comm_type": "p2p"}, CONTEXT, "cp_comm_type"),
    ({"overlap_p2p_comm": False}, {}, PIPELINE, "pipeline_model_parallel_size"),
    ({"overlap_p2p_comm": False}, PRIMUS_PIPELINE, PIPELINE, "patch_primus_pipeline"),
    ({"pp_algorithm": "zero-bubble"}, PIPELINE, PRIMUS_PIPELINE, "patch_primus_pipeline"),
    ({"communication_method": "batch_p2p"}, PIPELINE, PRIMUS_PIPELINE, "patch_primus_pipeline"),
    ({"save_interval": 2}, {}, SAVE, "save"),
    ({"save_retain_interval": 4}, {}, SAVE, "save"),
    *(({key: True}, {}, SAVE, "save") for key in ("no_save_optim", "no_save_rng", "disable_last_saving")),
    ({"ckpt_fully_parallel_save": False}, {}, SAVE, "save"),
    ({"ckpt_fully_parallel_save": False}, {**SAVE, "ckpt_format": "torch"}, SAVE, "ckpt_format"),
    ({"ckpt_format": "torch"}, {}, SAVE, "save"),
    ({"ckpt_format": "torch"}, {}, LOAD, "load"),
    ({"finetune": True}, {}, LOAD, "load"),
    *(({key: True}, {}, LOAD, "load") for key in ("no_load_optim", "no_load_rng", "auto_detect_ckpt_format")),
    ({"no_load_optim": True}, {}, {"pretrained_checkpoint": "p"}, "load"),
    ({"load_main_params_from_ckpt": True, "no_load_optim": True}, {}, {**LOAD, "no_load_optim": True}, "load"),
    ({"dist_ckpt_strictness": "log_all"}, {}, LOAD, "load"),
    ({"dist_ckpt_strictness": "log_all"}, {}, {**SAVE, "auto_continue_train": True}, "load"),
    ({"exit_on_missing_checkpoint": False}, {}, LOAD, "load"),
    ({"exit_on_missing_checkpoint": False}, {**LOAD, "pretrained_checkpoint": "p"}, LOAD, "pretrained_checkpoint"),
    ({"data_sharding": False}, {}, {"dataloader_type": "cyclic"}, "dataloader_type"),
    ({"split": "1,0,0"}, {}, FILES, "mock_data"),
    ({"data_cache_path": "c"}, {}, FILES, "mock_data"),
    ({"mmap_bin_files": False}, {}, FILES, "mock_data"),
    ({"num_dataset_builder_threads": 2}, {}, FILES, "mock_data"),
    (
        {"reset_position_ids": True},
        {},
        {"position_embedding_type": "learned_absolute"},
        "position_embedding_type",
    ),
    ({"create_attention_mask_in_dataloader": True}, {}, {"reset_attention_mask": True}, "reset_attention_mask"),
    ({"tensorboard_log_interval": 2}, {}, TENSORBOARD, "disable_tensorboard"),
    ({"tensorboard_log_interval": 2}, {}, WANDB, "disable_wandb"),
    ({"tensorboard_queue_size": 2}, {}, TENSORBOARD, "disable_tensorboard"),
    *(
        ({f"log_{key}_to_tensorboard": True}, {}, TENSORBOARD, "disable_tensorboard")
        for key in ("timers", "batch_size", "learning_rate", "validation_ppl", "world_size", "loss_scale")
    ),
    ({"tensorboard_dir": "tb"}, {"disable_tensorboard": True}, {}, "disable_tensorboard"),
    ({"disable_tensorboard": True}, {"profile": True}, {}, "profile"),
    *(({f"wandb_{key}": "w"}, {}, WANDB, "disable_wandb") for key in ("project", "exp_name", "save_dir", "entity")),
    *(({f"mlflow_{key}_name": "w"}, {}, MLFLOW, "disable_mlflow") for key in ("run", "experiment")),
    ({"use_pytorch_profiler": True}, {}, TRACE, "profile"),
    *(
        ({key: value}, {}, TRACE, "profile")
        for key, value in (
            ("profile_ranks", [1]),
            ("profile_step_start", 1),
            ("profile_step_end", 20),
            ("disable_profiler_activity_cpu", True),
            ("torch_profiler_record_shapes", False),
            ("torch_profiler_with_stack", False),
            ("torch_profiler_use_gzip", True),
        )
    ),
    ({"profile_ranks": [1]}, {"profile": True}, TRACE, "use_pytorch_profiler"),
    ({"num_query_groups": 2}, {}, {"group_query_attention": True}, "group_query_attention"),
    ({"qk_layernorm": True}, {"qk_l2_norm": True}, {}, "qk_l2_norm"),
    ({"add_position_embedding": True}, {}, {"position_embedding_type": "learned_absolute"}, "position_embedding_type"),
    (
        {"position_embedding_type": "learned_absolute"},
        {"use_rotary_position_embeddings": True},
        {},
        "use_rotary_position_embeddings",
    ),
    *(
        ({key: value}, {"position_embedding_type": "none"}, {}, "position_embedding_type")
        for key, value in (
            ("rotary_base", 5000),
            ("rotary_percent", 0.5),
            ("rotary_interleaved", True),
            ("rotary_seq_len_interpolation_factor", 2.0),
        )
    ),
    *(
        ({key: value}, {}, YARN, "position_embedding_type")
        for key, value in (
            ("original_max_position_embeddings", 16),
            ("rotary_scaling_factor", 2.0),
            ("mscale", 0.5),
            ("mscale_all_dim", 0.5),
            ("yarn_correction_range_round_to_int", False),
        )
    ),
    ({"rope_scaling_factor": 4.0}, {}, {"use_rope_scaling": True}, "use_rope_scaling"),
    ({"bias_gelu_fusion": True}, {"swiglu": True, "add_bias_linear": True}, PLAIN_GELU, "swiglu"),
    ({"bias_gelu_fusion": True}, {"swiglu": False, "add_bias_linear": False}, PLAIN_GELU, "add_bias_linear"),
    ({"tokenizer_model": "m"}, {}, HUGGING_FACE, "tokenizer_type"),
    ({"vocab_file": "v"}, {}, BPE, "tokenizer_type"),
    ({"merge_file": "m"}, WORD_PIECE, BPE, "tokenizer_type"),
    ({"vocab_extra_ids": 2}, BPE, WORD_PIECE, "tokenizer_type"),
    ({"tiktoken_pattern": "v1"}, {}, TIK, "tokenizer_type"),
    ({"tiktoken_num_special_tokens": 10}, {}, TIK, "tokenizer_type"),
    ({"tiktoken_special_tokens": ["<s>"]}, {}, TIK, "tokenizer_type"),
    ({"trust_remote_code": True}, {}, HUGGING_FACE, "tokenizer_type"),
]
"""Values set by the user; values that keep the first of them idle; values with which it acts; the key named as the reason."""


def notes_about(key: str, notices: list[str]) -> list[str]:
    lines = [line.partition(" no effect: ") for line in notices]
    return ["".join(parts) for parts in lines if parts[1] and f" {key} " in f" {parts[0]}"]


def ranks_of(values: Values) -> int:
    if values.get("replication_jump"):
        return 2
    tensor, pipeline, context, expert = (
        int(values.get(f"{axis}_parallel_size", 1)) for axis in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    return math.lcm(tensor * context, int(values.get("expert_tensor_parallel_size", tensor)) * expert) * pipeline


@pytest.mark.parametrize(("chosen", "idle", "acting", "reason"), CASES, ids=lambda part: str(part)[:50])
def test_a_key_speaks_where_it_is_idle_and_is_silent_where_it_acts(
    build: Any, chosen: Values, idle: Values, acting: Values, reason: str
) -> None:
    key = next(iter(chosen))
    (line,) = notes_about(key, build({**idle, **chosen}, world_size=ranks_of({**idle, **chosen})).notices)
    assert "(exp.yaml:" in line
    assert f"{reason} " in line.partition(" no effect: ")[2]
    others = {**acting, **chosen}
    assert notes_about(key, build(others, world_size=ranks_of(others)).notices) == []


def test_the_cases_cover_the_table() -> None:
    assert {key for row in IDLE for key in row.keys} == {next(iter(chosen)) for chosen, *_ in CASES}


@pytest.mark.parametrize(
    "quiet",
    [
        {"no_load_optim": False, "no_load_rng": None, "finetune": False, "manual_gc_eval": False, "lr_warmup_init": 0.0},
        {"create_attention_mask_in_dataloader": False, "bias_gelu_fusion": False, "override_opt_param_scheduler": False},
        {"save_retain_interval": None, "wandb_project": None, "vocab_extra_ids": 0},
    ],
)
def test_a_value_that_asks_for_nothing_is_silent(build: Any, quiet: Values) -> None:
    assert [line for key in quiet for line in notes_about(key, build(quiet).notices)] == []


def test_presets_never_speak(build: Any) -> None:
    notices = build({"optimizer": "sgd", "position_embedding_type": "none", "lr_decay_style": "constant"}).notices
    spoken = [words for line in notices for words, effect, _ in [line.partition(" no effect: ")] if effect]
    assert spoken
    assert [words for words in spoken if "primus/configs" in words] == []


def test_keys_of_one_row_share_a_line(build: Any) -> None:
    (line,) = notes_about("adam_beta1", build({"adam_beta1": 0.8, "adam_beta2": 0.9, "optimizer": "sgd"}).notices)
    assert "adam_beta2 0.9 (exp.yaml:" in line
