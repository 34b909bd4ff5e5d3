"""`MetricsFile` appends each record to `metrics.jsonl`, one JSON object a line, floats in full precision.

A resumed run appends; rows at or after the iteration it resumes from were never part of the continued run and are cut off, so
that the file always holds one row an iteration.
"""

import json
from pathlib import Path

from primus.engine.observe.sink import Record, Sink

__all__ = ["MetricsFile", "read_metrics"]


def read_metrics(file: Path) -> list[dict[str, float]]:
    """Return the rows of a metrics file; a line that a crash cut short is left out."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


class MetricsFile(Sink):
    """The machine-readable record of a run."""

    def __init__(self, file: Path, *, start_iteration: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            kept = [row for row in read_metrics(file) if row["iteration"] <= start_iteration]
            cut = file.with_suffix(".jsonl.tmp")
            cut.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            cut.replace(file)
        self._file = file.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(json.dumps(record) + "\n")

    def close(self, *, failed: bool) -> None:
        self._file.close()
