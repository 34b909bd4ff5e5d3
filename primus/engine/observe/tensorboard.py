"""`TensorBoard` writes scalars as event files, each also against consumed samples (`TAG vs samples`)."""

from collections.abc import Mapping
from pathlib import Path

from primus.engine.config import LoggerConfig
from primus.engine.observe.scalars import interval_scalars, step_scalars
from primus.engine.observe.sink import Record, Sink

__all__ = ["TensorBoard"]


class TensorBoard(Sink):
    """Event files under `tensorboard_dir`."""

    def __init__(self, config: LoggerConfig, folder: Path, *, config_text: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._config = config
        self._writer = SummaryWriter(str(folder), max_queue=config.tensorboard_queue_size)
        self._writer.add_text("config", f"```yaml\n{config_text}\n```")

    def step(self, record: Record) -> None:
        if record["iteration"] % self._config.tensorboard_log_interval == 0:
            self._add(step_scalars(record, self._config), record, with_samples=True)

    def write(self, record: Record) -> None:
        scalars = interval_scalars(record, self._config)
        evaluations = {tag: value for tag, value in scalars.items() if tag.startswith("lm loss")}
        self._add(evaluations, record, with_samples=True)
        self._add({t: v for t, v in scalars.items() if t not in evaluations}, record, with_samples=False)

    def close(self, *, failed: bool) -> None:
        self._writer.close()

    def _add(self, scalars: Mapping[str, float], record: Record, *, with_samples: bool) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, int(record["iteration"]))
            if with_samples:
                self._writer.add_scalar(f"{tag} vs samples", value, int(record["consumed_samples"]))
