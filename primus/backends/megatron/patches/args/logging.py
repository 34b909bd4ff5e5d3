"""Where a run reports to: levels, TensorBoard, W&B and MLflow, with homes inside the run folder.

The `disable_*` keys are on in the presets. A folder that the user gives switches TensorBoard on by itself; a profile needs
TensorBoard's folder; W&B and MLflow start only when their `disable_*` key is false.
"""

from primus.backends.megatron.params import Params, Problems, Rule

__all__ = [
    "RULES",
    "file_level",
    "mlflow_run_name",
    "stderr_level",
    "tensorboard_folder",
    "wandb_folder",
    "wandb_name",
    "wandb_project",
]

_LEVEL_NAMES = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR", 50: "CRITICAL"}


def stderr_level(p: Params) -> str:
    """Return the least level of the console: `logging_level` wins over `sink_level`, which wins over its own key."""
    if p["logging_level"] is not None:
        return _LEVEL_NAMES[p["logging_level"]]
    return str(p["sink_level"] or p["stderr_sink_level"])


def file_level(p: Params) -> str:
    """Return the least level of the log files."""
    return str(p["sink_level"] or p["file_sink_level"])


def tensorboard_folder(p: Params) -> str | None:
    """Return the folder of TensorBoard events; None: off."""
    given = p["tensorboard_dir"]
    refused = p["disable_tensorboard"] and (p.is_chosen("disable_tensorboard") or not given)
    if refused and not p["profile"]:
        return None
    return p.output_path(given or "tensorboard")


def wandb_project(p: Params) -> str | None:
    """Return the W&B project; None: off."""
    if p["disable_wandb"]:
        return None
    return p["wandb_project"] or f"{p.run.work_group}_{p.run.user_name}"


def wandb_name(p: Params) -> str | None:
    """Return the W&B run name; None: off."""
    return None if p["disable_wandb"] else p["wandb_exp_name"] or p.run.exp_name


def wandb_folder(p: Params) -> str | None:
    """Return the local folder of W&B; None: off."""
    return None if p["disable_wandb"] else p.output_path(p["wandb_save_dir"] or "wandb")


def mlflow_run_name(p: Params) -> str | None:
    """Return the MLflow run; None: off."""
    if p["disable_mlflow"]:
        return None
    return p["mlflow_run_name"] or f"{p.run.work_group}_{p.run.user_name}"


def level_is_known(p: Params) -> Problems:
    """`logging_level` is one of Python's levels."""
    if p["logging_level"] is not None and p["logging_level"] not in _LEVEL_NAMES:
        yield f"{p.where('logging_level')} must be 10 (debug), 20 (info), 30 (warning), 40 (error) or 50 (critical)."


def wandb_run_has_a_name(p: Params) -> Problems:
    """W&B refuses an empty name."""
    if not p["disable_wandb"] and p["wandb_exp_name"] == "":
        yield f"wandb_exp_name is empty ({p.source('wandb_exp_name')}): give it a name, or null for {p.run.exp_name}."


RULES: tuple[Rule, ...] = (level_is_known, wandb_run_has_a_name)
