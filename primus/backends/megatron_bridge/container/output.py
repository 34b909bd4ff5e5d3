"""What a run writes: checkpoints, logs, profiles."""

from dataclasses import dataclass, field

__all__ = ["CheckpointConfig", "LoggerConfig", "ProfilingConfig"]


@dataclass(kw_only=True)
class CheckpointConfig:
    """Checkpoints, and the weights to start from."""

    save: str | None = None
    save_interval: int | None = None
    most_recent_k: int = -1
    save_optim: bool = True
    save_rng: bool = True
    load: str | None = None
    load_optim: bool = True
    load_rng: bool = True
    load_main_params_from_ckpt: bool = False
    non_persistent_save_interval: int | None = None
    non_persistent_ckpt_type: str | None = None
    non_persistent_global_ckpt_dir: str | None = None
    non_persistent_local_ckpt_dir: str | None = None
    finetune: bool = False
    pretrained_checkpoint: str | None = None
    hf_path: str | None = None
    """Hugging Face folder or name to start from; Megatron-Bridge converts it to a `pretrained_checkpoint` first."""
    ckpt_step: int | None = None
    use_checkpoint_args: bool = False
    exit_on_missing_checkpoint: bool = False
    ckpt_format: str = "torch_dist"
    ckpt_convert_format: str | None = None
    ckpt_convert_save: str | None = None
    fully_parallel_save: bool = True
    fully_parallel_load: bool = False
    async_save: bool = False
    use_persistent_ckpt_worker: bool = True
    ckpt_assume_constant_structure: bool = False
    dist_ckpt_strictness: str = "assume_ok_unexpected"
    save_tokenizer_assets: bool = True
    replication: bool = False
    replication_jump: int | None = None
    replication_factor: int = 2


@dataclass(kw_only=True)
class LoggerConfig:
    """Logs."""

    log_interval: int = 100
    log_params_norm: bool = False
    log_throughput: bool = False
    log_throughput_to_tensorboard: bool = False
    throughput_window_size: int = 100
    log_progress: bool = False
    timing_log_level: int = 0
    timing_log_option: str = "minmax"
    tensorboard_dir: str | None = None
    tensorboard_log_interval: int = 1
    tensorboard_queue_size: int = 1000
    log_timers_to_tensorboard: bool = False
    log_loss_scale_to_tensorboard: bool = True
    log_validation_ppl_to_tensorboard: bool = False
    log_memory_to_tensorboard: bool = False
    memory_keys: dict[str, str] | None = None
    log_l2_norm_grad_to_tensorboard: bool = False
    log_runtime_to_tensorboard: bool = False
    runtime_time_unit: str = "hours"
    log_world_size_to_tensorboard: bool = False
    wandb_project: str | None = None
    wandb_exp_name: str | None = None
    wandb_save_dir: str | None = None
    wandb_entity: str | None = None
    logging_level: int | str = "INFO"
    filter_warnings: bool = True
    modules_to_filter: list[str] | None = None
    set_level_for_all_loggers: bool = False
    log_energy: bool = False
    save_config_filepath: str | None = None


@dataclass(kw_only=True)
class ProfilingConfig:
    """Profiles."""

    use_nsys_profiler: bool = False
    profile_step_start: int = 10
    profile_step_end: int = 12
    use_pytorch_profiler: bool = False
    profile_ranks: list[int] = field(default_factory=lambda: [0])
    record_memory_history: bool = False
    memory_snapshot_path: str = "snapshot.pickle"
    record_shapes: bool = False
    nvtx_ranges: bool = False
