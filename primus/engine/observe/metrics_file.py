"""`MetricsFile` appends each record to `metrics.jsonl`, one JSON object a line.

Floats are in full precision; NaN and infinity, which JSON does not know, are null. A resumed run appends. Rows later than the
iteration it resumes from were never part of the continued run: they are cut off as soon as a later row arrives. A run that
begins anew keeps the rows of an earlier one in the same folder as `metrics.jsonl.1`, `.2` and so on. An iteration may have more
than one row: evaluations at the end of a run have one of their own.
"""

import json
import logging
import math
from itertools import count
from pathlib import Path
from typing import Any

from primus.engine.observe.sink import Record, Sink

__all__ = ["MetricsFile", "read_metrics"]

log = logging.getLogger(__name__)


def read_metrics(file: Path) -> list[dict[str, float | None]]:
    """Return the rows of a metrics file; a line that a crash cut short is left out."""
    return [row for _, row in _rows(file)]


class MetricsFile(Sink):
    """The machine-readable record of a run."""

    def __init__(self, file: Path, *, start_iteration: int) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._start, self._is_cut = file, start_iteration, False
        self._file = file.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        # Not at the start: an evaluation alone, or a run that fails at once, takes nothing from the record that is there.
        if not self._is_cut and record["iteration"] > self._start:
            self._file.close()
            self._cut()
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._is_cut = True
        self._file.write(json.dumps({name: _number(value) for name, value in record.items()}, allow_nan=False) + "\n")

    def close(self, *, failed: bool) -> None:
        self._file.close()

    def _cut(self) -> None:
        """Leave the rows up to the start."""
        rows = _rows(self._path)
        kept = [line for line, row in rows if row["iteration"] <= self._start]
        if self._start == 0 and len(kept) < len(rows):
            aside = next(name for number in count(1) if not (name := Path(f"{self._path}.{number}")).exists())
            self._path.rename(aside)
            log.info("this run begins anew: the metrics of the earlier one in this folder are kept as %s", aside)
            return
        draft = self._path.with_suffix(".jsonl.tmp")
        draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        draft.replace(self._path)


def _number(value: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _rows(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return each whole line with its row."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append((line, json.loads(line)))
        except json.JSONDecodeError:
            continue
    return rows
