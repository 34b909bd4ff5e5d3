"""`progress.txt` (`log_progress`): one tab-separated line for each start, save and deletion, in the checkpoint folder.

Throughputs are TFLOP/s of one device: of this job since it started, and of all jobs together since the world last changed
its size, idle time between them included.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

__all__ = ["Progress"]

_TIME = "%Y-%m-%d %H:%M:%S"
_WORLD, _FLOPS, _STARTING = "# GPUs: ", "Floating-point operations: ", "Starting job"


class Progress:
    """The progress file of one job; the first rank uses it."""

    def __init__(self, base: Path, *, world_size: int, flops: float) -> None:
        self._file, self._world_size = base / "progress.txt", world_size
        self._begin, self._flops_before = datetime.now(), flops

    def started(self) -> None:
        """Note that the job starts."""
        self._append(_STARTING)

    def saved(self, *, iteration: int, flops: float, tokens: int) -> None:
        """Note a checkpoint; `flops` and `tokens` are totals of the run."""
        begin, flops_before = self._first_of_this_world()
        self._append(
            "Saved checkpoint",
            f"Iteration: {iteration}",
            f"Job throughput: {self._throughput(self._begin, flops - self._flops_before):.1f} TFLOP/s/GPU",
            f"Cumulative throughput: {self._throughput(begin, flops - flops_before):.1f} TFLOP/s/GPU",
            f"{_FLOPS}{flops:.2e}",
            f"Tokens (in billions): {tokens / 1e9:.2f}",
        )

    def deleted(self, iteration: int) -> None:
        """Note a checkpoint that retention removed."""
        self._append("Deleted checkpoint", f"Iteration: {iteration}")

    def _throughput(self, begin: datetime, flops: float) -> float:
        seconds = max((datetime.now() - begin).total_seconds(), 1e-9)
        return flops / seconds / 1e12 / self._world_size

    def _append(self, *message: str) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        job = os.environ.get("SLURM_JOB_ID", "")
        fields = (datetime.now().strftime(_TIME), f"Job ID: {job}", f"{_WORLD}{self._world_size}", *message)
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write("\t".join(fields) + "\n")

    def _first_of_this_world(self) -> tuple[datetime, float]:
        """Return when the first job of this world size began, since the last one of another, and the operations before it."""
        begin, before, done = self._begin, self._flops_before, 0.0
        same_world = False
        for stamp, fields in self._lines():
            if fields.get(_WORLD) != str(self._world_size):
                same_world = False
            elif not same_world and _STARTING in fields:
                begin, before, same_world = stamp, done, True
            done = float(fields.get(_FLOPS, done))
        return (begin, before) if same_world else (self._begin, self._flops_before)

    def _lines(self) -> Iterator[tuple[datetime, dict[str, str]]]:
        """Yield time and fields of each line; a line cut short by a crash is passed over."""
        if not self._file.is_file():
            return
        for line in self._file.read_text(encoding="utf-8").splitlines():
            stamp, *fields = line.split("\t")
            try:
                time = datetime.strptime(stamp, _TIME)
            except ValueError:
                continue
            pairs = [next(((p, f.removeprefix(p)) for p in (_WORLD, _FLOPS) if f.startswith(p)), (f, "")) for f in fields]
            yield time, dict(pairs)
