"""What is logged, how often and where to; profiling."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["LoggerConfig", "ProfilingConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggerConfig:
    """Console, metrics file, TensorBoard, W&B, MLflow."""

    log_interval: int = 1
    """Iterations between console lines and metrics rows."""
    log_throughput: bool = True
    """TFLOP/s on the console (always in the metrics file)."""
    log_progress: bool = False
    """Append starts, saves and deletions to `progress.txt` in the checkpoint folder."""
    log_avg_skip_iterations: int = 2
    """Iterations left out of the running averages."""
    log_avg_reset_interval: int = 10
    """Iterations of one averaging block."""
    timing_log_level: Literal[0, 1, 2] = 0
    """Which timers run."""
    barrier_before_timers: bool = True
    """Ranks meet before each timer of level 1, so that none counts the waiting for another."""
    timing_log_option: Literal["max", "minmax", "all"] = "minmax"
    """How timers are gathered over ranks."""
    tensorboard_dir: str | None = None
    """Folder of TensorBoard events; None: off."""
    tensorboard_log_interval: int = 1
    """Iterations between scalars."""
    tensorboard_queue_size: int = 1000
    """Pending events before a flush."""
    log_timers_to_tensorboard: bool = False
    """Timer scalars."""
    log_batch_size_to_tensorboard: bool = True
    """Batch size scalar."""
    log_learning_rate_to_tensorboard: bool = True
    """Learning rate scalar."""
    log_validation_ppl_to_tensorboard: bool = False
    """Perplexity of evaluations."""
    log_memory_to_tensorboard: bool = False
    """Memory scalars."""
    log_world_size_to_tensorboard: bool = False
    """World size scalar."""
    log_loss_scale_to_tensorboard: bool = True
    """Loss scale scalar."""
    wandb_project: str | None = None
    """W&B project; None: off."""
    wandb_exp_name: str | None = None
    """W&B run name."""
    wandb_save_dir: str | None = None
    """Local folder of W&B."""
    wandb_entity: str | None = None
    """W&B team."""
    mlflow_run_name: str | None = None
    """MLflow run; None: off."""
    mlflow_experiment_name: str | None = None
    """MLflow experiment."""
    file_sink_level: str = "DEBUG"
    """Least level of the log files."""
    stderr_sink_level: str = "INFO"
    """Least level of the console."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilingConfig:
    """torch.profiler over a window of iterations, and the memory of each."""

    profile: bool = False
    """Master switch."""
    use_pytorch_profiler: bool = False
    """Write a torch.profiler trace (without it a profiled run leaves nothing to read)."""
    profile_ranks: tuple[int, ...] = (0,)
    """Global ranks; empty: all."""
    profile_step_start: int = 10
    """First iteration of the window."""
    profile_step_end: int = 12
    """First iteration after the window."""
    with_cpu: bool = True
    """Record CPU activity."""
    record_shapes: bool = True
    """Record tensor shapes."""
    with_stack: bool = True
    """Record Python stacks."""
    use_gzip: bool = False
    """Compress traces."""
    memory_iteration: int = -1
    """Iteration from 1 whose allocations are recorded, with memory logged after every one; 0: logged only; -1: neither."""
