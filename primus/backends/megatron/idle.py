"""Keys that act only together with others: `idle_keys` says which of those that the user set do nothing, and why.

One table, `IDLE`. A row speaks about keys that the user set; a value that asks for nothing (null, or off as in the presets) is
silent. Not in it: combinations that a rule refuses, rewrites that announce themselves, and what follows from the number of
ranks or from `skip_train`, under which the keys of training rest as a whole.
"""

from collections.abc import Callable
from dataclasses import dataclass

from primus.backends.megatron.params import Notices, Params, Unreadable
from primus.backends.megatron.patches.args.context import communication
from primus.backends.megatron.patches.args.duration import counts_samples
from primus.backends.megatron.patches.args.fsdp import is_fsdp, shards
from primus.backends.megatron.patches.args.logging import tensorboard_folder
from primus.backends.megatron.patches.args.offload import named
from primus.backends.megatron.patches.args.pipeline import num_chunks, splits_backward
from primus.backends.megatron.patches.args.positions import position_type
from primus.backends.megatron.patches.args.precision import loss_scale, params_dtype
from primus.backends.megatron.patches.args.schedule import warmup_samples
from primus.backends.megatron.patches.args.tokenizer import NEEDS, SIZED

__all__ = ["IDLE", "idle_keys"]

Why = Callable[[Params], str | None]
"""What keeps a key from acting, with its origin; None: it acts."""


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


def _without(switch: str) -> Why:
    """Idle while `switch` is off or null."""
    return lambda p: None if p[switch] else p.where(switch)


def _under(key: str, *values: object) -> Why:
    """Idle while `key` has one of these values; without any, while it is on."""
    return lambda p: p.where(key) if (p[key] in values if values else p[key]) else None


def _unless(key: str, *values: object) -> Why:
    """Idle while `key` has none of these values."""
    return lambda p: None if p[key] in values else p.where(key)


def _first(*reasons: Why) -> Why:
    """Idle for the first reason that holds."""
    return lambda p: next((text for why in reasons if (text := why(p))), None)


def _if(key: str, value: object, why: Why) -> Why:
    """Ask only for this value: another one gets what it says."""
    return lambda p: why(p) if p[key] == value else None


def _without_pipeline(p: Params) -> str | None:
    return p.where("pipeline_model_parallel_size") if p["pipeline_model_parallel_size"] == 1 else None


def _keeps_whole_messages(p: Params) -> str | None:
    """A message is shared out between tensor-parallel ranks that would each send all of it."""
    if p["tensor_model_parallel_size"] == 1:
        return p.where("tensor_model_parallel_size")
    return _under("sequence_parallel")(p)


def _has_one_chunk(p: Params) -> str | None:
    return p.where("num_virtual_stages_per_pipeline_rank") if num_chunks(p) == 1 else None


def _has_weight_gradients_apart(p: Params) -> str | None:
    """The schedule places them."""
    return (
        p.where("patch_primus_pipeline" if p["patch_primus_pipeline"] else "patch_zero_bubble") if splits_backward(p) else None
    )


def _without_context(p: Params) -> str | None:
    return p.where("context_parallel_size") if p["context_parallel_size"] == 1 else None


def _is_one_level(p: Params) -> str | None:
    return None if "a2a+p2p" in communication(p) else p.where("cp_comm_type")


def _without_fsdp(p: Params) -> str | None:
    return None if is_fsdp(p) else p.where("use_megatron_fsdp")


def _shards_nothing(p: Params) -> str | None:
    return p.where("data_parallel_sharding_strategy") if shards(p, "no_shard") else None


def _keeps_whole_gradients(p: Params) -> str | None:
    strategy = p.where("data_parallel_sharding_strategy")
    return _without_fsdp(p) or (None if shards(p, "optim_grads", "optim_grads_params") else strategy)


def _keeps_whole_weights(p: Params) -> str | None:
    return _without_fsdp(p) or (None if shards(p, "optim_grads_params") else p.where("data_parallel_sharding_strategy"))


def _reduces_each_microbatch(p: Params) -> str | None:
    """Sharded gradients are reduced by layer, in every microbatch."""
    return None if _keeps_whole_gradients(p) else p.where("data_parallel_sharding_strategy")


def _gathers_by_layer(p: Params) -> str | None:
    """Sharded weights are gathered while their layer runs."""
    return None if _keeps_whole_weights(p) else p.where("data_parallel_sharding_strategy")


def _has_two_chunks(p: Params) -> str | None:
    """The first two are gathered at once."""
    if num_chunks(p) > 2:
        return None
    return p.where("num_virtual_stages_per_pipeline_rank") if p["pipeline_model_parallel_size"] > 1 else _without_pipeline(p)


def _without_checkpoint(p: Params) -> str | None:
    """Nothing is ever read."""
    return None if p["load"] or p["pretrained_checkpoint"] or p["auto_continue_train"] else p.where("load")


def _touches_no_checkpoint(p: Params) -> str | None:
    """Nothing is written either."""
    return f"{p.where('save')} and {p.where('load')}" if p["save"] is None and _without_checkpoint(p) else None


def _never_alone(p: Params) -> str | None:
    """A persistent checkpoint is written wherever one is due."""
    every = p["save_interval"]
    return p.where("save_interval") if every and p["non_persistent_save_interval"] % every == 0 else None


def _needs_no_scratch(p: Params) -> str | None:
    """Nothing is written, and nothing is looked for where a run begins."""
    if p["non_persistent_save_interval"] is not None or (p["auto_continue_train"] and p["save"]):
        return None
    idle = p["load"] is None or p["finetune"] or p["ckpt_step"]
    return p.where("non_persistent_save_interval") if idle else None


def _without_weights(p: Params) -> str | None:
    """Continuing by itself restores everything, whatever these keys say."""
    return None if p["load"] or p["pretrained_checkpoint"] else p.where("load")


def _without_resume(p: Params) -> str | None:
    if p["auto_continue_train"]:
        return None
    return p.where("finetune") if p["load"] and p["finetune"] else _without("load")(p)


def _without_evaluation(p: Params) -> str | None:
    return None if p["eval_iters"] or p["full_validation"] else p.where("eval_iters")


def _without_dynamic_scale(p: Params) -> str | None:
    if not p["fp16"]:
        return p.where("fp16")
    return p.where("loss_scale") if loss_scale(p) is not None else None


def _fp32(p: Params) -> str | None:
    """The distributed optimizer scales in every dtype."""
    is_idle = params_dtype(p) == "float32" and not p["use_distributed_optimizer"]
    return f"weights are fp32 ({p.where('fp16')}, {p.where('bf16')})" if is_idle else None


def _overruled_in_bf16(p: Params) -> str | None:
    return p.where("grad_reduce_in_bf16") if p["bf16"] and p["grad_reduce_in_bf16"] else None


def _never_decays(p: Params) -> str | None:
    """A warm-up given as a fraction still reads the length."""
    return p.where("lr_decay_style") if p["lr_decay_style"] == "constant" and p["lr_warmup_fraction"] is None else None


def _without_warmup(p: Params) -> str | None:
    count = "lr_warmup_samples" if counts_samples(p) else "lr_warmup_iters"
    return None if warmup_samples(p) else p.where(count)


def _without_board(p: Params) -> str | None:
    return None if tensorboard_folder(p) else p.where("disable_tensorboard")


def _without_curves(p: Params) -> str | None:
    """TensorBoard and W&B draw the same curves."""
    is_drawn = tensorboard_folder(p) or not p["disable_wandb"]
    return None if is_drawn else f"{p.where('disable_tensorboard')} and {p.where('disable_wandb')}"


def _positions(*types: str) -> Why:
    """Idle unless positions enter in one of these ways."""

    def why(p: Params) -> str | None:
        if position_type(p) in types:
            return None
        return p.where("use_rotary_position_embeddings" if p["use_rotary_position_embeddings"] else "position_embedding_type")

    return why


def _rotary_is_said_otherwise(p: Params) -> str | None:
    is_overruled = p["use_rotary_position_embeddings"] and p["position_embedding_type"] != "rope"
    return p.where("use_rotary_position_embeddings") if is_overruled else None


def _backend_decides(p: Params) -> str | None:
    """The key is a preference; a deterministic run needs it off."""
    backend = p["attention_backend"]
    if p["use_flash_attn"]:
        return p.where("attention_backend") if backend in ("unfused", "local") else None
    if backend in ("unfused", "local") or p["deterministic_mode"]:
        return None
    return f"{p.where('attention_backend')} is fused attention also without it; set attention_backend: unfused"


def _is_explicit(p: Params) -> str | None:
    """Scaling by layer needs the scores."""
    return _under("apply_query_key_layer_scaling")(p) if p["attention_backend"] in ("flash", "fused") else None


def _is_not_plain_gelu(p: Params) -> str | None:
    """The fused form differs from the plain one only for biased GELU."""
    other = next((key for key in ("swiglu", "squared_relu", "quick_geglu") if p[key]), None)
    return p.where(other) if other else _without("add_bias_linear")(p)


def _tokenizers(*kinds: str) -> Why:
    """Idle unless the tokenizer is one of these kinds."""
    return _unless("tokenizer_type", *kinds)


def _reads_no_model(p: Params) -> str | None:
    return p.where("tokenizer_type") if p["tokenizer_type"] in NEEDS else None


def _is_no_hub_tokenizer(p: Params) -> str | None:
    others = {*NEEDS, "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "TikTokenizer"}
    return p.where("tokenizer_type") if p["tokenizer_type"] in others else None


def _cuts_sequences(p: Params) -> str | None:
    """1F1B over slices goes before the other schedules of its section."""
    return p.where("num_seq_splits") if p["num_seq_splits"] > 1 else None


def _meets_in_every_step(p: Params) -> str | None:
    """Where ranks come together after each iteration, stages have waited for the norm."""
    return next((p.where(key) for key in ("exit_signal_handler", "exit_duration_in_mins", "dump_pp_data") if p[key]), None)


def _names_nothing(p: Params) -> str | None:
    return None if named(p) else p.where("offload_ops")


def _recomputes_all(p: Params) -> str | None:
    """What is computed again is not kept."""
    return p.where("recompute_method") if p["recompute_granularity"] == "full" and p["recompute_method"] == "uniform" else None


_TIMED = _first(
    _without("patch_zero_bubble"), _under("zero_bubble_v_schedule"), _without("enable_zero_bubble"), _cuts_sequences
)
"""Only the schedule that times itself reads them."""
_UNGROUPED = _first(
    _without("patch_zero_bubble"),
    _under("enable_zero_bubble"),
    _under("zero_bubble_v_schedule"),
    _under("enable_1f1b_v"),
    _has_one_chunk,
)
_PROFILER = _first(_without("profile"), _without("use_pytorch_profiler"))

_RUN = (
    Idle(("file_sink_level",), _under("sink_level")),
    Idle(("stderr_sink_level",), _first(_under("logging_level"), _under("sink_level"))),
    Idle(("eval_interval",), _without_evaluation),
    Idle(("manual_gc_interval", "manual_gc_eval"), _without("manual_gc")),
    Idle(("use_pytorch_profiler",), _without("profile")),
    Idle(("profile_ranks", "profile_step_start", "profile_step_end"), _PROFILER),
    Idle(("disable_profiler_activity_cpu", "torch_profiler_record_shapes"), _PROFILER),
    Idle(("torch_profiler_with_stack", "torch_profiler_use_gzip"), _PROFILER),
)
_OPTIMIZATION = (
    Idle(("initial_loss_scale", "min_loss_scale", "loss_scale_window", "hysteresis"), _without_dynamic_scale),
    Idle(("loss_scale",), _fp32),
    Idle(("grad_reduce_in_bf16",), _without("bf16")),
    Idle(("accumulate_allreduce_grads_in_fp32",), _overruled_in_bf16),
    Idle(("adam_beta1", "adam_beta2", "adam_eps"), _unless("optimizer", "adam")),
    Idle(("sgd_momentum",), _unless("optimizer", "sgd")),
    Idle(("min_lr",), _under("lr_decay_style", "constant")),
    Idle(("lr_decay_iters", "lr_decay_samples"), _never_decays),
    Idle(("lr_warmup_init",), _without_warmup),
    Idle(("lr_wsd_decay_style", "lr_wsd_decay_iters", "lr_wsd_decay_samples"), _unless("lr_decay_style", "WSD")),
    Idle(("weight_decay",), _unless("weight_decay_incr_style", "constant")),
    Idle(("decoupled_min_lr",), lambda p: None if p["decoupled_lr"] is not None else p.where("decoupled_lr")),
    Idle(("override_opt_param_scheduler",), _if("override_opt_param_scheduler", True, _without_resume)),
    Idle(("use_checkpoint_opt_param_scheduler",), _without_resume),
)
_RANKS = (
    Idle(
        ("ddp_num_buckets", "ddp_bucket_size"),
        _first(_under("use_torch_fsdp2"), _reduces_each_microbatch, _without("overlap_grad_reduce")),
    ),
    Idle(("overlap_grad_reduce", "overlap_param_gather", "ddp_average_in_collective"), _under("use_torch_fsdp2")),
    Idle(("align_grad_reduce",), _first(_without_pipeline, _without("overlap_grad_reduce"), _reduces_each_microbatch)),
    Idle(("align_param_gather",), _first(_has_two_chunks, _without("overlap_param_gather"), _gathers_by_layer)),
    Idle(("overlap_param_gather_with_optimizer_step",), _gathers_by_layer),
    Idle(("use_megatron_fsdp", "use_custom_fsdp"), _shards_nothing),
    Idle(("data_parallel_sharding_strategy",), _without_fsdp),
    Idle(("gradient_reduce_div_fusion",), _first(_keeps_whole_gradients, _under("ddp_average_in_collective"))),
    Idle(("suggested_communication_unit_size",), _first(_keeps_whole_weights, _without("overlap_param_gather"))),
    Idle(("ddp_pad_buckets_for_high_nccl_busbw",), _without("use_distributed_optimizer")),
    Idle(("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"), _without_pipeline),
    Idle(("allow_padding_num_layers", "use_tp_pp_dp_mapping"), _without_pipeline),
    Idle(("tp_comm_overlap_cfg", "tp_comm_overlap_rs_dgrad"), _without("tp_comm_overlap")),
    Idle(("tp_comm_bulk_wgrad", "tp_comm_bulk_dgrad"), _first(_without("tp_comm_overlap"), _under("tp_comm_overlap_rs_dgrad"))),
    Idle(("tp_comm_overlap_ag",), _first(_without("tp_comm_overlap"), _without("tp_comm_split_ag"))),
    Idle(("tp_comm_split_ag",), _first(_without("tp_comm_overlap"), _without("tp_comm_overlap_ag"))),
    Idle(("tp_comm_overlap_rs",), _first(_without("tp_comm_overlap"), _without("tp_comm_split_rs"))),
    Idle(("tp_comm_split_rs",), _first(_without("tp_comm_overlap"), _without("tp_comm_overlap_rs"))),
    Idle(("cp_comm_type",), _without_context),
    Idle(("hierarchical_context_parallel_sizes",), _first(_without_context, _is_one_level)),
    Idle(("overlap_p2p_comm",), _first(_without_pipeline, _under("patch_primus_pipeline"))),
    Idle(("pp_algorithm", "communication_method"), _without("patch_primus_pipeline")),
    Idle(("pipeline_model_parallel_comm_backend",), _without_pipeline),
    Idle(("nccl_communicator_config_path", "high_priority_stream_groups"), _under("distributed_backend", "gloo")),
)
_SCHEDULES = (
    Idle(("delay_wgrad_compute",), _first(_without_pipeline, _has_weight_gradients_apart)),
    Idle(("wgrad_deferral_limit",), _without("defer_embedding_wgrad_compute")),
    Idle(("pre_communication_optimization", "pp_warmup", "dump_pp_data"), _without_pipeline),
    Idle(("scatter_gather_tensors_in_pipeline",), _first(_without_pipeline, _keeps_whole_messages)),
    Idle(("zero_bubble_v_schedule", "enable_1f1b_v"), _without("patch_zero_bubble")),
    Idle(("interleave_group_size",), _UNGROUPED),
    Idle(("enable_zero_bubble",), _first(_without("patch_zero_bubble"), _under("zero_bubble_v_schedule"), _cuts_sequences)),
    Idle(("enable_optimizer_post_validation",), _meets_in_every_step),
    Idle(("enable_exactly_numeric_match",), _first(_without("enable_optimizer_post_validation"), _meets_in_every_step)),
    Idle(("zero_bubble_v_schedule_mem_setup",), _first(_without("patch_zero_bubble"), _without("zero_bubble_v_schedule"))),
    Idle(("zero_bubble_pipeline_timers_start_iter", "zero_bubble_pipeline_timers_end_iter"), _TIMED),
    Idle(("zero_bubble_max_pending_backward",), _TIMED),
    Idle(("offload",), _first(_names_nothing, _recomputes_all)),
    Idle(("offload_ops",), _without("offload")),
    Idle(("offload_chunk_num", "auto_offload_time", "offload_overlap_sr"), _without("cpu_offload")),
    Idle(("offload_time",), _first(_without("cpu_offload"), _under("auto_offload_time"))),
    Idle(
        ("zero_bubble_adaptive_memory_limit_percentile",), _first(_TIMED, _unless("zero_bubble_max_pending_backward", "auto"))
    ),
)
_MODEL = (
    Idle(("use_flash_attn",), _backend_decides),
    Idle(("attention_backend",), _is_explicit),
    Idle(("init_method_std",), _first(_without("perform_initialization"), _under("init_method_xavier_uniform"))),
    Idle(("init_method_xavier_uniform",), _without("perform_initialization")),
    Idle(("num_query_groups",), _without("group_query_attention")),
    Idle(("qk_layernorm",), _under("qk_l2_norm")),
    Idle(("bias_gelu_fusion",), _if("bias_gelu_fusion", True, _is_not_plain_gelu)),
    Idle(("position_embedding_type",), _rotary_is_said_otherwise),
    Idle(("add_position_embedding", "reset_position_ids"), _positions("learned_absolute")),
    Idle(("rotary_base", "rotary_percent"), _positions("rope", "yarn")),
    Idle(("rotary_interleaved", "rotary_seq_len_interpolation_factor"), _positions("rope", "yarn")),
    Idle(("original_max_position_embeddings", "rotary_scaling_factor", "mscale", "mscale_all_dim"), _positions("yarn")),
    Idle(("rope_scaling_factor",), _without("use_rope_scaling")),
)
_DATA = (
    Idle(("data_sharding",), _unless("dataloader_type", "cyclic")),
    Idle(("split", "data_cache_path", "mmap_bin_files", "num_dataset_builder_threads"), _under("mock_data")),
    Idle(
        ("create_attention_mask_in_dataloader",),
        _if("create_attention_mask_in_dataloader", True, _without("reset_attention_mask")),
    ),
    Idle(("vocab_size",), _tokenizers(*SIZED)),
    Idle(("tokenizer_model",), _reads_no_model),
    Idle(("vocab_file",), _tokenizers("GPT2BPETokenizer", "BertWordPieceLowerCase", "BertWordPieceCase")),
    Idle(("merge_file",), _tokenizers("GPT2BPETokenizer")),
    Idle(("vocab_extra_ids",), _tokenizers("BertWordPieceLowerCase", "BertWordPieceCase")),
    Idle(("tiktoken_pattern", "tiktoken_num_special_tokens", "tiktoken_special_tokens"), _tokenizers("TikTokenizer")),
    Idle(("trust_remote_code",), _is_no_hub_tokenizer),
)
_CHECKPOINTS = (
    Idle(("save_interval", "save_retain_interval", "disable_last_saving"), _without("save")),
    Idle(("no_save_optim", "no_save_rng"), _without("save")),
    Idle(("ckpt_fully_parallel_save",), _first(_without("save"), _unless("ckpt_format", "torch_dist"))),
    Idle(("ckpt_format",), _touches_no_checkpoint),
    Idle(("finetune",), _if("finetune", True, _without("load"))),
    Idle(("no_load_optim", "no_load_rng", "load_main_params_from_ckpt"), _without_weights),
    Idle(("dist_ckpt_strictness", "auto_detect_ckpt_format"), _without_checkpoint),
    Idle(("non_persistent_save_interval",), _never_alone),
    Idle(("non_persistent_ckpt_type",), _needs_no_scratch),
    Idle(("non_persistent_global_ckpt_dir",), _unless("non_persistent_ckpt_type", "global")),
    Idle(("non_persistent_local_ckpt_dir", "non_persistent_local_ckpt_algo"), _unless("non_persistent_ckpt_type", "local")),
    Idle(("replication",), _without("non_persistent_save_interval")),
    Idle(("replication_jump", "replication_factor"), _without("replication")),
    Idle(("exit_on_missing_checkpoint",), _first(_without("load"), _under("pretrained_checkpoint"))),
)
_REPORTS = (
    Idle(("tensorboard_log_interval", "log_timers_to_tensorboard", "log_batch_size_to_tensorboard"), _without_curves),
    Idle(("log_learning_rate_to_tensorboard", "log_validation_ppl_to_tensorboard"), _without_curves),
    Idle(("log_world_size_to_tensorboard", "log_loss_scale_to_tensorboard"), _without_curves),
    Idle(("tensorboard_dir", "tensorboard_queue_size"), _without_board),
    Idle(("disable_tensorboard",), _if("disable_tensorboard", True, _under("profile"))),
    Idle(("wandb_project", "wandb_exp_name", "wandb_save_dir", "wandb_entity"), _under("disable_wandb")),
    Idle(("mlflow_run_name", "mlflow_experiment_name"), _under("disable_mlflow")),
)

IDLE: tuple[Idle, ...] = (*_RUN, *_OPTIMIZATION, *_RANKS, *_SCHEDULES, *_MODEL, *_DATA, *_CHECKPOINTS, *_REPORTS)
"""Keys with what each needs in order to act."""
