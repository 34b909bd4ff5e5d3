"""Keys that act only together with others: `idle_keys` says which of those that the user set do nothing, and why.

One table, `IDLE`. A row speaks about keys that the user set; a value that asks for nothing (null, or off as in the presets) is
silent. Not in it: combinations that a rule refuses, rewrites that announce themselves, and what follows from the number of
ranks or from `skip_train`, under which the keys of training rest as a whole.
"""

from dataclasses import dataclass

from primus.backends.megatron.params import Notices, Params, Unreadable
from primus.backends.megatron.patches.args.turbo import SWITCHES
from primus.backends.megatron.reasons import (
    Why,
    attends_nowhere,
    backend_decides,
    balances_by_nothing,
    cuts_sequences,
    experts_are_here,
    extends_no_context,
    first,
    fp32,
    gathers_by_layer,
    has_no_gate,
    has_no_router_losses,
    has_one_chunk,
    has_two_chunks,
    has_weight_gradients_apart,
    is_explicit,
    is_no_hub_tokenizer,
    is_no_plain_attention,
    is_not_plain_gelu,
    is_one_level,
    is_plain_router,
    keeps_whole_gradients,
    keeps_whole_messages,
    keeps_whole_weights,
    meets_in_every_step,
    names_nothing,
    needs_no_scratch,
    never_alone,
    never_decays,
    only_if,
    overruled_in_bf16,
    positions,
    reads_no_model,
    recomputes_all,
    reduces_each_microbatch,
    rotary_is_said_otherwise,
    shards_nothing,
    sinkhorn_chooses,
    tokenizers,
    touches_no_checkpoint,
    under,
    unless,
    weighs_no_balance,
    without,
    without_board,
    without_checkpoint,
    without_context,
    without_curves,
    without_dynamic_scale,
    without_evaluation,
    without_fsdp,
    without_pipeline,
    without_resume,
    without_warmup,
    without_weights,
)

__all__ = ["IDLE", "idle_keys"]


@dataclass(frozen=True, slots=True)
class Idle:
    """Keys with one condition."""

    keys: tuple[str, ...]
    why: Why


def idle_keys(p: Params) -> Notices:
    """Yield one line for each row with keys that the user set in vain."""
    for row in IDLE:
        try:
            asked = [key for key in row.keys if p.is_chosen(key) and not p.asks_for_nothing(key)]
            reason = row.why(p) if asked else None
        except Unreadable:
            continue
        if reason:
            verb = "has" if len(asked) == 1 else "have"
            yield f"{' and '.join(p.where(key) for key in asked)} {verb} no effect: {reason}."


_TIMED = first(without("patch_zero_bubble"), under("zero_bubble_v_schedule"), without("enable_zero_bubble"), cuts_sequences)
"""Only the schedule that times itself reads them."""
_UNGROUPED = first(
    without("patch_zero_bubble"),
    under("enable_zero_bubble"),
    under("zero_bubble_v_schedule"),
    under("enable_1f1b_v"),
    has_one_chunk,
)
_PROFILER = first(without("profile"), without("use_pytorch_profiler"))

_NO_MIXER = unless("model_type", "mamba")
_NO_SCAN = first(_NO_MIXER, under("experimental_attention_variant"))

_RUN = (
    Idle(("file_sink_level",), under("sink_level")),
    Idle(("stderr_sink_level",), first(under("logging_level"), under("sink_level"))),
    Idle(("eval_interval",), without_evaluation),
    Idle(("manual_gc_interval", "manual_gc_eval"), without("manual_gc")),
    Idle(("use_pytorch_profiler",), without("profile")),
    Idle(("profile_ranks", "profile_step_start", "profile_step_end"), _PROFILER),
    Idle(("disable_profiler_activity_cpu", "torch_profiler_record_shapes"), _PROFILER),
    Idle(("torch_profiler_with_stack", "torch_profiler_use_gzip"), _PROFILER),
)
_OPTIMIZATION = (
    Idle(("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"), without_dynamic_scale),
    Idle(("loss_scale",), fp32),
    Idle(("grad_reduce_in_bf16",), without("bf16")),
    Idle(("accumulate_allreduce_grads_in_fp32",), overruled_in_bf16),
    Idle(("adam_beta1", "adam_beta2", "adam_eps"), unless("optimizer", "adam")),
    Idle(("sgd_momentum",), unless("optimizer", "sgd")),
    Idle(("min_lr",), under("lr_decay_style", "constant")),
    Idle(("lr_decay_iters", "lr_decay_samples"), never_decays),
    Idle(("lr_warmup_init",), without_warmup),
    Idle(("lr_wsd_decay_style", "lr_wsd_decay_iters", "lr_wsd_decay_samples"), unless("lr_decay_style", "WSD")),
    Idle(("weight_decay",), unless("weight_decay_incr_style", "constant")),
    Idle(("decoupled_min_lr",), lambda p: None if p["decoupled_lr"] is not None else p.where("decoupled_lr")),
    Idle(("override_opt_param_scheduler",), only_if("override_opt_param_scheduler", True, without_resume)),
    Idle(("use_checkpoint_opt_param_scheduler",), without_resume),
)
_RANKS = (
    Idle(
        ("ddp_num_buckets", "ddp_bucket_size"),
        first(under("use_torch_fsdp2"), reduces_each_microbatch, without("overlap_grad_reduce")),
    ),
    Idle(("overlap_grad_reduce", "overlap_param_gather", "ddp_average_in_collective"), under("use_torch_fsdp2")),
    Idle(("align_grad_reduce",), first(without_pipeline, without("overlap_grad_reduce"), reduces_each_microbatch)),
    Idle(("align_param_gather",), first(has_two_chunks, without("overlap_param_gather"), gathers_by_layer)),
    Idle(("overlap_param_gather_with_optimizer_step",), gathers_by_layer),
    Idle(("use_megatron_fsdp", "use_custom_fsdp"), shards_nothing),
    Idle(("data_parallel_sharding_strategy",), without_fsdp),
    Idle(("gradient_reduce_div_fusion",), first(keeps_whole_gradients, under("ddp_average_in_collective"))),
    Idle(("suggested_communication_unit_size",), first(keeps_whole_weights, without("overlap_param_gather"))),
    Idle(("ddp_pad_buckets_for_high_nccl_busbw",), without("use_distributed_optimizer")),
    Idle(("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), without_pipeline),
    Idle(("allow_padding_num_layers", "use_tp_pp_dp_mapping"), without_pipeline),
    Idle(("tp_comm_overlap_cfg", "tp_comm_overlap_rs_dgrad"), without("tp_comm_overlap")),
    Idle(("tp_comm_bulk_wgrad", "tp_comm_bulk_dgrad"), first(without("tp_comm_overlap"), under("tp_comm_overlap_rs_dgrad"))),
    Idle(("tp_comm_overlap_ag",), first(without("tp_comm_overlap"), without("tp_comm_split_ag"))),
    Idle(("tp_comm_split_ag",), first(without("tp_comm_overlap"), without("tp_comm_overlap_ag"))),
    Idle(("tp_comm_overlap_rs",), first(without("tp_comm_overlap"), without("tp_comm_split_rs"))),
    Idle(("tp_comm_split_rs",), first(without("tp_comm_overlap"), without("tp_comm_overlap_rs"))),
    Idle(("cp_comm_type",), without_context),
    Idle(("hierarchical_context_parallel_sizes",), first(without_context, is_one_level)),
    Idle(("overlap_p2p_comm",), first(without_pipeline, under("patch_primus_pipeline"))),
    Idle(("pp_algorithm", "communication_method"), without("patch_primus_pipeline")),
    Idle(("pipeline_model_parallel_comm_backend",), without_pipeline),
    Idle(("nccl_communicator_config_path", "high_priority_stream_groups"), under("distributed_backend", "gloo")),
)
_SCHEDULES = (
    Idle(("delay_wgrad_compute",), first(without_pipeline, has_weight_gradients_apart)),
    Idle(("wgrad_deferral_limit",), without("defer_embedding_wgrad_compute")),
    Idle(("pre_communication_optimization", "pp_warmup", "dump_pp_data"), without_pipeline),
    Idle(("scatter_gather_tensors_in_pipeline",), first(without_pipeline, keeps_whole_messages)),
    Idle(("zero_bubble_v_schedule", "enable_1f1b_v"), without("patch_zero_bubble")),
    Idle(("interleave_group_size",), _UNGROUPED),
    Idle(("enable_zero_bubble",), first(without("patch_zero_bubble"), under("zero_bubble_v_schedule"), cuts_sequences)),
    Idle(("enable_optimizer_post_validation",), meets_in_every_step),
    Idle(("enable_exactly_numeric_match",), first(without("enable_optimizer_post_validation"), meets_in_every_step)),
    Idle(("zero_bubble_v_schedule_mem_setup",), first(without("patch_zero_bubble"), without("zero_bubble_v_schedule"))),
    Idle(("zero_bubble_pipeline_timers_start_iter", "zero_bubble_pipeline_timers_end_iter"), _TIMED),
    Idle(("zero_bubble_max_pending_backward",), _TIMED),
    Idle(("offload",), first(names_nothing, recomputes_all)),
    Idle(("offload_ops",), without("offload")),
    Idle(("offload_chunk_num", "auto_offload_time", "offload_overlap_sr"), without("cpu_offload")),
    Idle(("offload_time",), first(without("cpu_offload"), under("auto_offload_time"))),
    Idle(("zero_bubble_adaptive_memory_limit_percentile",), first(_TIMED, unless("zero_bubble_max_pending_backward", "auto"))),
)
_MODEL = (
    Idle(("use_flash_attn",), backend_decides),
    Idle(("attention_backend",), is_explicit),
    Idle(("init_method_std",), first(without("perform_initialization"), under("init_method_xavier_uniform"))),
    Idle(("init_method_xavier_uniform",), without("perform_initialization")),
    Idle(("num_query_groups",), without("group_query_attention")),
    Idle(("qk_layernorm",), under("qk_l2_norm")),
    Idle(("qk_norm_type",), first(without("qk_layernorm"), under("qk_l2_norm"))),
    Idle(("apply_wd_to_qk_layernorm",), first(without("qk_layernorm"), under("qk_l2_norm"))),
    Idle(("bias_gelu_fusion",), only_if("bias_gelu_fusion", True, is_not_plain_gelu)),
    Idle(("position_embedding_type",), rotary_is_said_otherwise),
    Idle(("add_position_embedding", "reset_position_ids"), positions("learned_absolute")),
    Idle(("rotary_base", "rotary_percent"), positions("rope", "yarn")),
    Idle(("rotary_interleaved", "rotary_seq_len_interpolation_factor"), positions("rope", "yarn")),
    Idle(("original_max_position_embeddings",), extends_no_context),
    Idle(
        ("rotary_scaling_factor", "mscale", "mscale_all_dim", "yarn_correction_range_round_to_int"),
        positions("yarn"),
    ),
    Idle(("rope_scaling_factor",), without("use_rope_scaling")),
)
_SINKS = (
    Idle(("window_size", "attention_chunk_size", "use_sink_attention", "attn_logit_softcapping"), attends_nowhere),
    Idle(("multi_latent_attention", "attention_output_gate", "post_self_attn_layernorm", "no_rope_freq"), attends_nowhere),
    Idle(("sink_sliding_window",), without("use_sink_attention")),
    Idle(("sink_window_even_layers_only",), first(without("use_sink_attention"), without("sink_sliding_window"))),
    Idle(("window_attn_skip_freq",), without("window_size")),
    Idle(("attn_temperature_scale",), without("no_rope_freq")),
    Idle(("attn_temperature_floor",), first(without("no_rope_freq"), without("attn_temperature_scale"))),
)
_TURBO = (
    Idle(
        ("enable_primus_turbo",), lambda p: None if any(p[key] for key in SWITCHES) else f"none of {', '.join(SWITCHES)} is on"
    ),
    Idle(("use_turbo_attention",), first(without("enable_primus_turbo"), attends_nowhere, is_no_plain_attention)),
    Idle(("turbo_sync_free_moe_stage",), without("num_experts")),
    Idle(("use_turbo_rms_norm",), first(without("enable_primus_turbo"), unless("normalization", "RMSNorm"))),
    Idle(("use_turbo_fused_act_with_probs",), first(without("enable_primus_turbo"), without("num_experts"), has_no_gate)),
    Idle(
        ("use_turbo_grouped_gemm",),
        first(without("enable_primus_turbo"), without("num_experts"), without("moe_grouped_gemm")),
    ),
)
_LATENT = (
    Idle(
        ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"), without("multi_latent_attention")
    ),
    Idle(("rope_type",), without("multi_latent_attention")),
    Idle(("kv_channels", "add_qkv_bias", "position_embedding_type"), under("multi_latent_attention")),
)
_UNCHOSEN = first(without("num_experts"), sinkhorn_chooses)
_EXPERTS = (
    Idle(("moe_layer_freq",), first(without("num_experts"), under("model_type", "mamba"))),
    Idle(("mtp_loss_scaling_factor",), without("mtp_num_layers")),
    Idle(("moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"), without("num_experts")),
    Idle(("moe_use_upcycling",), without("num_experts")),
    Idle(("moe_shared_expert_gate",), first(without("num_experts"), without("moe_shared_expert_intermediate_size"))),
    Idle(("mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads", "mamba_d_conv"), _NO_SCAN),
    Idle(("mamba_expand",), first(_NO_SCAN, under("mamba_num_heads"))),
    Idle(("linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim"), without("experimental_attention_variant")),
    Idle(("linear_num_key_heads", "linear_num_value_heads"), without("experimental_attention_variant")),
    Idle(("linear_attention_freq",), first(without("experimental_attention_variant"), under("model_type", "mamba"))),
    Idle(("is_hybrid_model",), _NO_MIXER),
    Idle(("hybrid_override_pattern",), first(_NO_MIXER, without("is_hybrid_model"))),
    Idle(
        ("hybrid_attention_ratio", "hybrid_mlp_ratio"),
        first(_NO_MIXER, without("is_hybrid_model"), under("hybrid_override_pattern")),
    ),
    Idle(("heterogeneous_layers_config_path",), under("heterogeneous_layers_config_encoded_json")),
    Idle(("moe_router_topk", "moe_router_dtype", "moe_input_jitter_eps", "router_logit_softcapping"), without("num_experts")),
    Idle(("moe_router_load_balancing_type",), first(without("num_experts"), weighs_no_balance)),
    Idle(("moe_aux_loss_coeff",), first(without("num_experts"), balances_by_nothing)),
    Idle(("moe_z_loss_coeff", "moe_grouped_gemm"), without("num_experts")),
    Idle(("moe_expert_capacity_factor", "moe_router_force_load_balancing"), without("num_experts")),
    Idle(("expert_tensor_parallel_size",), without("num_experts")),
    Idle(("moe_layer_recompute",), first(without("num_experts"), under("recompute_granularity", "full"))),
    Idle(("overlap_moe_expert_parallel_comm",), first(without("num_experts"), experts_are_here)),
    Idle(("use_turbo_deepep",), first(without("enable_primus_turbo"), without("num_experts"))),
    Idle(("moe_token_dispatcher_type",), first(without("num_experts"), experts_are_here)),
    Idle(
        ("moe_shared_expert_overlap",),
        first(without("num_experts"), without("moe_shared_expert_intermediate_size"), experts_are_here),
    ),
    Idle(("moe_router_score_function", "moe_router_topk_scaling_factor", "moe_router_enable_expert_bias"), _UNCHOSEN),
    Idle(("moe_router_pre_softmax",), first(_UNCHOSEN, unless("moe_router_score_function", "softmax"))),
    Idle(("moe_router_group_topk",), _UNCHOSEN),
    Idle(("moe_router_num_groups",), first(_UNCHOSEN, without("moe_router_group_topk"))),
    Idle(("moe_router_bias_update_rate",), first(without("num_experts"), without("moe_router_enable_expert_bias"))),
    Idle(("moe_token_drop_policy",), first(without("num_experts"), without("moe_expert_capacity_factor"))),
    Idle(("moe_pad_expert_input_to_capacity",), without("num_experts")),
    Idle(("moe_per_layer_logging",), first(without("num_experts"), has_no_router_losses)),
    Idle(("moe_router_force_load_balancing_type",), first(without("num_experts"), without("moe_router_force_load_balancing"))),
    Idle(("disable_primus_topk_router",), first(without("num_experts"), is_plain_router)),
)
_DATA = (
    Idle(("data_sharding",), unless("dataloader_type", "cyclic")),
    Idle(("split", "data_cache_path", "mmap_bin_files", "num_dataset_builder_threads"), under("mock_data")),
    Idle(
        ("create_attention_mask_in_dataloader",),
        only_if("create_attention_mask_in_dataloader", True, without("reset_attention_mask")),
    ),
    Idle(("tokenizer_model",), reads_no_model),
    Idle(("vocab_file",), tokenizers("GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase")),
    Idle(("merge_file",), tokenizers("GPT2BPETokenizer")),
    Idle(("vocab_extra_ids",), tokenizers("BertWordPieceLowerCase", "BertWordPieceCase")),
    Idle(("tiktoken_pattern", "tiktoken_num_special_tokens", "tiktoken_special_tokens"), tokenizers("TikTokenizer")),
    Idle(("trust_remote_code",), is_no_hub_tokenizer),
)
_CHECKPOINTS = (
    Idle(("save_interval", "save_retain_interval", "disable_last_saving"), without("save")),
    Idle(("no_save_optim", "no_save_rng"), without("save")),
    Idle(("ckpt_fully_parallel_save",), first(without("save"), unless("ckpt_format", "torch_dist"))),
    Idle(("ckpt_format",), touches_no_checkpoint),
    Idle(("finetune",), only_if("finetune", True, without("load"))),
    Idle(("no_load_optim", "no_load_rng", "load_main_params_from_ckpt"), without_weights),
    Idle(("dist_ckpt_strictness", "auto_detect_ckpt_format"), without_checkpoint),
    Idle(("non_persistent_save_interval",), never_alone),
    Idle(("non_persistent_ckpt_type",), needs_no_scratch),
    Idle(("non_persistent_global_ckpt_dir",), unless("non_persistent_ckpt_type", "global")),
    Idle(("non_persistent_local_ckpt_dir", "non_persistent_local_ckpt_algo"), unless("non_persistent_ckpt_type", "local")),
    Idle(("replication",), without("non_persistent_save_interval")),
    Idle(("replication_jump", "replication_factor"), without("replication")),
    Idle(("exit_on_missing_checkpoint",), first(without("load"), under("pretrained_checkpoint"))),
)
_REPORTS = (
    Idle(("tensorboard_log_interval", "log_timers_to_tensorboard", "log_batch_size_to_tensorboard"), without_curves),
    Idle(("log_learning_rate_to_tensorboard", "log_validation_ppl_to_tensorboard"), without_curves),
    Idle(("log_world_size_to_tensorboard", "log_loss_scale_to_tensorboard"), without_curves),
    Idle(("tensorboard_dir", "tensorboard_queue_size"), without_board),
    Idle(("disable_tensorboard",), only_if("disable_tensorboard", True, under("profile"))),
    Idle(("wandb_project", "wandb_exp_name", "wandb_save_dir", "wandb_entity"), under("disable_wandb")),
    Idle(("mlflow_run_name", "mlflow_experiment_name"), under("disable_mlflow")),
)

IDLE: tuple[Idle, ...] = (
    *_RUN,
    *_OPTIMIZATION,
    *_RANKS,
    *_SCHEDULES,
    *_MODEL,
    *_SINKS,
    *_TURBO,
    *_LATENT,
    *_EXPERTS,
    *_DATA,
    *_CHECKPOINTS,
    *_REPORTS,
)
"""Keys with what each needs in order to act."""
