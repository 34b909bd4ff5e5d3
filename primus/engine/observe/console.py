"""`Console` shows each record: a Rich progress bar on a terminal, one plain line otherwise."""

import logging
import re
import sys
import time
from datetime import timedelta

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from primus.engine.observe.sink import Record, Sink
from primus.log import FILE_ONLY

__all__ = ["Console", "line_of"]

log = logging.getLogger(__name__)

_FIELDS = (
    ("lm_loss", "lm loss", "{:.6E}"),
    ("load_balancing_loss", "load balance", "{:.4f}"),
    ("seq_load_balancing_loss", "seq load balance", "{:.4f}"),
    ("global_load_balancing_loss", "global load balance", "{:.4f}"),
    ("z_loss", "z loss", "{:.4g}"),
    ("learning_rate", "lr", "{:.3E}"),
    ("grad_norm", "grad norm", "{:.3f}"),
    ("loss_scale", "loss scale", "{:.1f}"),
    ("global_batch_size", "batch", "{:d}"),
    ("num_zeros", "num zeros", "{:d}"),
    ("params_norm", "params norm", "{:.3f}"),
    ("iteration_time_ms", "ms/it", "{:,.1f}"),
    ("tokens_per_second", "tokens/s", "{:,.0f}"),
    ("trained_tokens_per_second", "trained/s", "{:,.0f}"),
)


def line_of(record: Record, *, with_throughput: bool) -> str:
    """Return the fields of a record that a reader wants in one line."""
    first, *rest = _FIELDS
    ahead = [(key, key.replace("_", " "), first[2]) for key in record if re.fullmatch(r"mtp_\d+_loss", key)]
    fields = (first, *ahead, *rest)
    parts = [_field(record, *field) for field in fields if field[0] in record and _is_news(field[0], record)]
    if with_throughput and "tflops_per_device" in record:
        parts.append(_field(record, "tflops_per_device", "TFLOP/s", "{:.3g}"))
    if record.get("skipped_iterations"):
        parts.append(f"skipped {record['skipped_iterations']}")
    if record.get("nan_iterations"):
        parts.append(f"nan {record['nan_iterations']}")
    return " | ".join(parts)


def _field(record: Record, key: str, name: str, form: str) -> str:
    """Word a field, with its average where there is one."""
    average = record.get(f"{key}_average")
    text = f"{name} {form.format(record[key])}"
    return text if average is None else f"{text} (avg {form.format(average)})"


def _is_news(key: str, record: Record) -> bool:
    return key != "loss_scale" or record[key] != 1.0


class Console(Sink):
    """Progress for a person: what was reached, how fast, how long it will take."""

    def __init__(self, *, total_iterations: int, start_iteration: int, with_throughput: bool) -> None:
        self._total, self._with_throughput = total_iterations, with_throughput
        self._start_iteration, self._start = start_iteration, time.monotonic()
        self._rich = RichConsole(file=sys.stderr)
        self._progress: Progress | None = None
        if self._rich.is_terminal:
            columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._rich)
            self._task = self._progress.add_task("", total=total_iterations, completed=start_iteration)

    def write(self, record: Record) -> None:
        if "lm_loss" not in record:
            return  # evaluations after the last iteration, which were told when they were made
        iteration = int(record["iteration"])
        width, eta = len(str(self._total)), self._eta(iteration)
        text = line_of(record, with_throughput=self._with_throughput)
        line = f"iteration {iteration:{width}d}/{self._total} | {text}"
        log.info("%s", line, extra=FILE_ONLY)
        if self._progress is not None:
            description = f"{iteration}/{self._total} | {text} | ETA {eta}"
            # Not before: what fails until the first iteration is over leaves the terminal as it was.
            self._progress.start()
            self._progress.update(self._task, completed=iteration, description=description)
        else:
            sys.stderr.write(f"{line} | ETA {eta}\n")
            sys.stderr.flush()

    def close(self, *, failed: bool) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _eta(self, iteration: int) -> timedelta:
        done = iteration - self._start_iteration
        left = (time.monotonic() - self._start) / max(done, 1) * (self._total - iteration)
        return timedelta(seconds=round(left))
