"""Experiment trackers: Weights & Biases (works offline) and MLflow (a local folder unless a server is named).

Both are optional parts of a run: they import their package when they are built, and a run without them never loads it.
"""

import logging
import os
from pathlib import Path
from typing import Any

from primus.engine.config import LoggerConfig
from primus.engine.observe.scalars import interval_scalars, step_scalars
from primus.engine.observe.sink import Record, Sink

__all__ = ["MLflow", "WandB"]

log = logging.getLogger(__name__)


class WandB(Sink):
    """One W&B run; offline when neither an API key nor a mode is in the environment."""

    def __init__(self, config: LoggerConfig, *, folder: Path, settings: dict[str, Any]) -> None:
        import wandb

        offline = "WANDB_API_KEY" not in os.environ and "WANDB_MODE" not in os.environ
        if offline:
            log.warning("W&B runs offline: WANDB_API_KEY is not set; upload later with `wandb sync %s`", folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._run = wandb.init(
            project=config.wandb_project,
            name=config.wandb_exp_name,
            entity=config.wandb_entity,
            dir=str(folder),
            config=settings,
            mode="offline" if offline else None,
        )

    def step(self, record: Record) -> None:
        if record["iteration"] % self._config.tensorboard_log_interval == 0:
            scalars = step_scalars(record, self._config)
            self._run.log({**scalars, "samples vs steps": record["consumed_samples"]}, step=int(record["iteration"]))

    def write(self, record: Record) -> None:
        self._run.log(interval_scalars(record, self._config), step=int(record["iteration"]))

    def close(self, *, failed: bool) -> None:
        self._run.finish(int(failed))


class MLflow(Sink):
    """One MLflow run; parameters are the container's values, metrics the records'."""

    def __init__(self, config: LoggerConfig, *, folder: Path, settings: dict[str, Any]) -> None:
        import mlflow

        self._mlflow = mlflow
        if "MLFLOW_TRACKING_URI" not in os.environ:
            # MLflow has no other store without a database; the folder is what the run's documentation promises.
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            mlflow.set_tracking_uri(folder.as_uri())
        if config.mlflow_experiment_name is not None:
            mlflow.set_experiment(config.mlflow_experiment_name)
        mlflow.start_run(run_name=config.mlflow_run_name)
        flat = list(_flatten(settings).items())
        for start in range(0, len(flat), 100):  # the server takes at most 100 parameters a call
            mlflow.log_params(dict(flat[start : start + 100]))

    def write(self, record: Record) -> None:
        self._mlflow.log_metrics({k: float(v) for k, v in record.items()}, step=int(record["iteration"]))

    def close(self, *, failed: bool) -> None:
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
