"""Metric names as dashboards know them: one table from record keys to tags, gated by the `log_*_to_tensorboard` keys.

TensorBoard and W&B both read it, so that a curve has one name everywhere.
"""

from primus.engine.config import LoggerConfig
from primus.engine.observe.sink import Record

__all__ = ["interval_scalars", "step_scalars"]

_STEP_TAGS = {
    "lm_loss": "lm loss",
    "learning_rate": "learning-rate",
    "global_batch_size": "batch-size",
    "loss_scale": "loss-scale",
    "world_size": "world-size",
    "grad_norm": "grad-norm",
    "num_zeros": "num-zeros",
    "params_norm": "params-norm",
}


_ROUTER_LOSSES = ("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss")


def step_scalars(record: Record, config: LoggerConfig) -> dict[str, float]:
    """Return tag -> value of one iteration, without those that the configuration switches off."""
    gates = {
        "learning_rate": config.log_learning_rate_to_tensorboard,
        "global_batch_size": config.log_batch_size_to_tensorboard,
        "loss_scale": config.log_loss_scale_to_tensorboard,
        "world_size": config.log_world_size_to_tensorboard,
    }
    tags = {tag: record[key] for key, tag in _STEP_TAGS.items() if key in record and gates.get(key, True)}
    if config.log_memory_to_tensorboard:
        tags |= {key: value for key, value in record.items() if key.startswith("mem-")}
    return tags


def interval_scalars(record: Record, config: LoggerConfig) -> dict[str, float]:
    """Return tag -> value of a logged interval: times (in seconds), throughput, evaluations and losses beside the first."""
    tags: dict[str, float] = {}
    for key, value in record.items():
        if key in _ROUTER_LOSSES or key.startswith("moe/"):
            tags[key] = value
        name, _, kind = key.rpartition("_")
        if name.startswith("mtp_") and kind == "loss":
            tags[f"{name} loss"] = value
        if name.startswith(("validation", "test")) and kind == "loss":
            tags[f"lm loss {name}"] = value
        elif name.startswith(("validation", "test")) and kind == "ppl" and config.log_validation_ppl_to_tensorboard:
            tags[f"lm loss {name} ppl"] = value
    if config.log_timers_to_tensorboard and "iteration_time_ms" in record:
        tags["iteration-time"] = record["iteration_time_ms"] / 1e3
        if config.log_throughput:
            tags["throughput"] = record["tflops_per_device"]
        timers = {key.removeprefix("timer/"): value for key, value in record.items() if key.startswith("timer/")}
        tags |= {f"{name}-time": value / 1e3 for name, value in timers.items()}
    return tags
