"""Which field of a container is which flat Megatron key; a field without one is used elsewhere, or refused with its reason.

Most bear the key's own name. `key_of` is the name to use; `notes.py` tells who sets a field of `WITHOUT_EFFECT`.
"""

from primus.backends.megatron.keys import KEYS

__all__ = ["ELSEWHERE", "NEGATED", "OF_ROWS_WITHOUT_EFFECT", "SIMPLE_PARTS", "WITHOUT_EFFECT", "key_of", "refusal"]

SIMPLE_PARTS = (
    "train",
    "optimizer",
    "scheduler",
    "ddp",
    "dist",
    "checkpoint",
    "logger",
    "tokenizer",
    "profiling",
    "rng",
    "rerun_state_machine",
    "straggler",
    "ft",
    "nvrx_straggler",
    "inprocess_restart",
    "tensor_inspect",
)
"""Sub-configs whose fields are keys one by one."""

_RENAMED = {
    "ddp.pad_buckets_for_high_nccl_busbw": "ddp_pad_buckets_for_high_nccl_busbw",
    "ddp.average_in_collective": "ddp_average_in_collective",
    "dist.use_gloo_process_groups": "enable_gloo_process_groups",
    "checkpoint.fully_parallel_save": "ckpt_fully_parallel_save",
    "checkpoint.fully_parallel_load": "ckpt_fully_parallel_load",
}

NEGATED = {
    "checkpoint.save_optim": "no_save_optim",
    "checkpoint.save_rng": "no_save_rng",
    "checkpoint.load_optim": "no_load_optim",
    "checkpoint.load_rng": "no_load_rng",
}
"""Fields whose key says the contrary."""

ELSEWHERE = frozenset(
    {
        # precision.py
        *(f"optimizer.{name}" for name in ("fp16", "bf16", "params_dtype", "loss_scale", "initial_loss_scale")),
        *(f"optimizer.{name}" for name in ("min_loss_scale", "loss_scale_window", "hysteresis")),
        *(f"model.{name}" for name in ("fp16", "bf16", "params_dtype", "pipeline_dtype")),
        "ddp.grad_reduce_in_fp32",
        # values.py
        *(f"train.{name}" for name in ("eval_iters", "eval_interval", "skip_train")),
        "optimizer.weight_decay",
        "optimizer.use_distributed_optimizer",
        "ddp.use_distributed_optimizer",
        "optimizer.overlap_param_gather",
        "ddp.overlap_param_gather",
        "scheduler.start_weight_decay",
        "scheduler.end_weight_decay",
        "scheduler.lr_warmup_iters",
        "scheduler.no_weight_decay_cond_type",
        "ddp.check_for_nan_in_grad",
        "rerun_state_machine.check_for_nan_in_loss",
        "ddp.use_megatron_fsdp",
        "dist.use_megatron_fsdp",
        "ddp.data_parallel_sharding_strategy",
        "dist.distributed_backend",
        "checkpoint.load",
        "checkpoint.save_interval",
        "checkpoint.hf_path",
        "logger.logging_level",
        "tokenizer.vocab_size",
        "tokenizer.chat_template",
        "profiling.use_pytorch_profiler",
        # overlap.py
        "ddp.bucket_size",
        # model_keys.py
        "model.share_embeddings_and_output_weights",
        "model.gated_linear_unit",
        "model.activation_func",
        "model.moe_flex_dispatcher_backend",
    }
)
"""Fields that are read by other rules than one key a field."""

_BY_SCHEDULE = "messages between stages are ordered by the schedule"
WITHOUT_EFFECT = {
    "model.batch_p2p_comm": _BY_SCHEDULE,
    "model.bias_activation_fusion": "fused forms are chosen by themselves",
    "model.should_pad_vocab": "the vocabulary is padded to make_vocab_size_divisible_by, and padding takes no part",
    "model.hf_model_id": "hf_path names the model",
    "model.generation_config": "exports copy it from the folder of hf_path",
    "dist.lazy_init": "process groups are built when the model needs them",
    "dist.disable_jit_fuser": "nothing is fused by torch's tracing compiler",
    "dist.enable_megatron_core_experimental": "there is no Megatron-Core below",
    "checkpoint.save_tokenizer_assets": "a checkpoint names its tokenizer, and exports copy it",
    "logger.log_throughput_to_tensorboard": "throughput is always logged",
    "logger.throughput_window_size": "every logged interval has its own throughput",
    "logger.log_l2_norm_grad_to_tensorboard": "the gradients' norm is always logged",
    "logger.log_runtime_to_tensorboard": "the time of an iteration is always logged",
    "logger.runtime_time_unit": "times are in milliseconds",
    "logger.filter_warnings": "there are no warnings to filter",
    "logger.save_config_filepath": "config.yaml in the run folder is the configuration",
    "straggler.enable_straggler_on_startup": "log_straggler decides",
    "dataset.persistent_workers": "loader processes live as long as the run",
    "dataset.memmap_workers": "rows are indexed as they are read",
    "dataset.skip_getting_attention_mask_from_dataset": "create_attention_mask decides",
    "dataset.delete_raw": "rows are read where they lie, and nothing is deleted",
    "dataset.rewrite": "rows are read where they lie, and nothing is rewritten",
    "mixed_precision.autocast_enabled": "weights have the dtype that they compute in",
    "mixed_precision.autocast_dtype": "weights have the dtype that they compute in",
    "comm_overlap.batch_p2p_comm": _BY_SCHEDULE,
}
"""Fields that change nothing here, and why; who sets one is told."""
OF_ROWS_WITHOUT_EFFECT = {
    "dataset.data_sharding": "every batch is drawn from all rows, so that the order knows no layout",
    "dataset.packed_sequence_specs.pad_cu_seqlens": "attention takes as many samples as a pack holds",
}
"""The same of rows; documents have such a key."""


def key_of(path: str) -> str | None:
    """Return the flat key that a field is; None if it is none."""
    if path in ELSEWHERE or path in WITHOUT_EFFECT:
        return None
    name = _RENAMED.get(path, path.rpartition(".")[2])
    return name if name in KEYS else None


def refusal(path: str) -> str | None:
    """Return why a field may not leave its default; None if it may."""
    if key_of(path) or path in NEGATED or path in ELSEWHERE or path in WITHOUT_EFFECT:
        return None
    return f"{path} is not implemented yet"
