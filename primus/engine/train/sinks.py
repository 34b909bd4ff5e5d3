"""`open_sinks`: everything that listens to a run, on the rank that reports."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from primus.engine.config import serialize
from primus.engine.observe.console import Console
from primus.engine.observe.metrics_file import MetricsFile
from primus.engine.observe.sink import Sink, close_all
from primus.engine.observe.tensorboard import TensorBoard
from primus.engine.observe.trackers import MLflow, WandB
from primus.engine.train.assemble import Parts

__all__ = ["Report", "open_sinks"]

log = logging.getLogger(__name__)


def open_sinks(parts: Parts) -> list[Sink]:
    """Open the sinks that the configuration asks for; if one fails, those that are open already are closed."""
    sinks: list[Sink] = []
    try:
        for sink in _opened(parts):
            sinks.append(sink)
    except BaseException:
        close_all(sinks, failed=True)
        raise
    return sinks


def _opened(parts: Parts) -> Iterator[Sink]:
    config, folder = parts.config, Path(parts.config.run.folder)
    logger, begin = config.logger, parts.state.iteration
    settings = serialize.to_dict(config)
    yield MetricsFile(folder / "metrics.jsonl", start_iteration=begin)
    yield Console(total_iterations=config.train.train_iters, start_iteration=begin, with_throughput=logger.log_throughput)
    if logger.tensorboard_dir is not None:
        yield TensorBoard(logger, Path(logger.tensorboard_dir), config_text=serialize.dump(config))
    if logger.wandb_project is not None:
        yield WandB(logger, folder=Path(logger.wandb_save_dir or folder / "wandb"), settings=settings)
    if logger.mlflow_run_name is not None:
        yield MLflow(logger, folder=folder / "mlruns", settings=settings)
    yield Report(folder)


class Report(Sink):
    """Draws the run's report at its end, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def close(self, *, failed: bool) -> None:
        done = subprocess.run([sys.executable, "-m", "primus.engine.observe.report", str(self._folder)], check=False)
        if done.returncode == 0:
            log.info("report: %s", self._folder / "report" / "index.html")
