"""Runs that go on: repeated steps, stragglers, faults, restarts."""

from dataclasses import dataclass

__all__ = [
    "FaultToleranceConfig",
    "InProcessRestartConfig",
    "NVRxStragglerDetectionConfig",
    "RerunStateMachineConfig",
    "StragglerDetectionConfig",
    "TensorInspectConfig",
]


@dataclass(kw_only=True)
class RerunStateMachineConfig:
    """Checks of the loss, and steps that are done again."""

    error_injection_rate: int = 0
    error_injection_type: str = "transient_error"
    rerun_mode: str = "disabled"
    check_for_nan_in_loss: bool = True
    check_for_spiky_loss: bool = False


@dataclass(kw_only=True)
class StragglerDetectionConfig:
    """Ranks that are slower than others."""

    log_straggler: bool = False
    enable_straggler_on_startup: bool = True
    straggler_ctrlr_port: int = 65535
    straggler_minmax_count: int = 1


@dataclass(kw_only=True)
class NVRxStragglerDetectionConfig:
    """The same by NVIDIA's resiliency extension."""

    enabled: bool = False
    report_time_interval: float = 300.0
    calc_relative_gpu_perf: bool = True
    calc_individual_gpu_perf: bool = True
    num_gpu_perf_scores_to_print: int = 5
    gpu_relative_perf_threshold: float = 0.7
    gpu_individual_perf_threshold: float = 0.7
    stop_if_detected: bool = False
    enable_logging: bool = True
    profiling_interval: int = 1


@dataclass(kw_only=True)
class FaultToleranceConfig:
    """Time limits of the same extension, and faults to try them with."""

    enable_ft_package: bool = False
    calc_ft_timeouts: bool = False
    simulate_fault: bool = False
    simulated_fault_type: str = "random"
    simulated_fault_rank: int | None = None
    simulated_fault_base_delay: int = 0


@dataclass(kw_only=True)
class InProcessRestartConfig:
    """Restarts without new processes."""

    enabled: bool = False
    max_iterations: int | None = None
    monitor_thread_interval: float = 1.0
    monitor_process_interval: float = 1.0
    progress_watchdog_interval: float = 1.0
    heartbeat_interval: float = 30.0
    soft_timeout: float = 60.0
    hard_timeout: float = 90.0
    heartbeat_timeout: float = 60.0
    barrier_timeout: float = 120.0
    completion_timeout: float = 120.0
    last_call_wait: float = 1.0
    termination_grace_time: float = 1.0
    granularity: str = "node"
    active_world_size: int | None = None
    empty_cuda_cache: bool = True
    max_rank_faults: int | None = None
    monitor_process_logdir: str | None = None


@dataclass(kw_only=True)
class TensorInspectConfig:
    """Tensors on the way through the model."""

    enabled: bool = False
    features: str | None = None
    feature_dirs: list[str] | None = None
    log_dir: str | None = None
    init_training_step: int = 0
