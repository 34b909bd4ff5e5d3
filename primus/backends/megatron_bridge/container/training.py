"""Length of the run, optimizer, schedule, seeds."""

from dataclasses import dataclass, field

__all__ = ["OptimizerConfig", "RNGConfig", "SchedulerConfig", "TrainingConfig", "ValidationConfig"]


@dataclass(kw_only=True)
class TrainingConfig:
    """Batches, iterations, evaluations, exits."""

    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    rampup_batch_size: list[int] | None = None
    decrease_batch_size_if_needed: bool = False
    empty_unused_memory_level: int = 0
    check_weight_hash_across_dp_replicas_interval: int | None = None
    train_sync_interval: int | None = None
    train_iters: int | None = None
    train_samples: int | None = None
    exit_interval: int | None = None
    exit_duration_in_mins: int | None = None
    exit_signal_handler: bool = False
    exit_signal: str = "SIGTERM"
    exit_signal_handler_for_dataloader: bool = False
    manual_gc: bool = False
    manual_gc_interval: int = 0
    manual_gc_eval: bool = True
    iterations_to_skip: list[int] = field(default_factory=list)
    eval_iters: int = 100
    eval_interval: int | None = 1000
    skip_train: bool = False


@dataclass(kw_only=True)
class ValidationConfig:
    """Evaluation, as Megatron-Bridge's later containers have it; None: what `train` says of the same name."""

    eval_iters: int | None = None
    eval_interval: int | None = None
    start_eval_at_iter: int | None = None
    eval_global_batch_size: int | None = None
    eval_micro_batch_size: int | None = None
    skip_train: bool | None = None
    test_mode: bool = False
    full_validation: bool = False
    multiple_validation_sets: bool = False
    validation_set_names: list[str] | None = None


@dataclass(kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    optimizer: str = "adam"
    lr: float | None = None
    min_lr: float | None = None
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_eps: float = 1e-8
    sgd_momentum: float = 0.9
    clip_grad: float = 1.0
    fp16: bool = False
    bf16: bool = False
    params_dtype: str = "fp32"
    use_distributed_optimizer: bool = False
    overlap_param_gather: bool = False
    overlap_param_gather_with_optimizer_step: bool = False
    loss_scale: float | None = None
    initial_loss_scale: float = 2.0**32
    min_loss_scale: float = 1.0
    loss_scale_window: float = 1000
    hysteresis: int = 2
    use_precision_aware_optimizer: bool = False
    main_grads_dtype: str = "fp32"
    main_params_dtype: str = "fp32"
    exp_avg_dtype: str = "fp32"
    exp_avg_sq_dtype: str = "fp32"
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 0.0
    log_num_zeros_in_grad: bool = False
    muon_momentum: float = 0.95
    muon_use_nesterov: bool = True
    muon_scale_mode: str = "spectral"
    muon_fp32_matmul_prec: str = "medium"
    muon_num_ns_steps: int = 5
    muon_tp_mode: str = "blockwise"


@dataclass(kw_only=True)
class SchedulerConfig:
    """Learning rate and weight decay over the run."""

    lr_decay_style: str = "linear"
    lr_wsd_decay_style: str = "exponential"
    lr_decay_iters: int | None = None
    lr_decay_samples: int | None = None
    lr_wsd_decay_iters: int | None = None
    lr_wsd_decay_samples: int | None = None
    lr_warmup_fraction: float | None = None
    lr_warmup_iters: int = 0
    lr_warmup_samples: int = 0
    lr_warmup_init: float = 0.0
    override_opt_param_scheduler: bool = False
    use_checkpoint_opt_param_scheduler: bool = False
    start_weight_decay: float | None = None
    end_weight_decay: float | None = None
    weight_decay_incr_style: str = "constant"
    no_weight_decay_cond_type: str | None = None


@dataclass(kw_only=True)
class RNGConfig:
    """Seeds."""

    seed: int = 1234
    te_rng_tracker: bool = False
    inference_rng_tracker: bool = False
    data_parallel_random_init: bool = False
