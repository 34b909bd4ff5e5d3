"""`prepare`: text, JSON lines or parquet to Megatron's `.bin/.idx`, by many processes, resumable. No torch.

Each unit of work becomes a part file under `PREFIX.parts/`, written whole or not at all; the parts are joined in order at
the end. A run that was killed is repeated with the same command and goes on with the parts that are missing; the bytes
are the same either way.
"""

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from primus.engine.config import TokenizerConfig
from primus.engine.data.indexed import IndexedDatasetBuilder, best_dtype
from primus.engine.data.prepare.sources import Unit, cut_into_units, find_files, read_unit
from primus.engine.data.tokenizer import Tokenizer, build_tokenizer
from primus.errors import InputError

__all__ = ["PrepareOptions", "PrepareReport", "prepare"]

_SHOWN = 10
"""Broken documents that an error names."""
_BATCH = 256
"""Documents tokenized by one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """What a preparation does."""

    json_key: str = "text"
    """Field of a JSON line, or column of a parquet file."""
    append_eod: bool = True
    """End every document with the tokenizer's end-of-document token."""
    skip_broken: bool = False
    """Leave documents out that cannot be read, instead of stopping."""
    overwrite: bool = False
    """Replace a dataset that exists."""
    workers: int = 0
    """Processes; 0: one a core."""


@dataclass(slots=True)
class PrepareReport:
    """What came of it."""

    documents: int = 0
    tokens: int = 0
    bytes_read: int = 0
    empty: list[str] = field(default_factory=list)
    """Where documents without any token stand; they are left out."""
    broken: list[str] = field(default_factory=list)
    """Where documents that cannot be read stand, and why."""

    def add(self, other: "PrepareReport") -> None:
        """Count a unit in."""
        self.documents += other.documents
        self.tokens += other.tokens
        self.bytes_read += other.bytes_read
        self.empty += other.empty
        self.broken += other.broken


Progress = Callable[[PrepareReport, int], None]
"""Called with the report so far and the bytes of all input."""


def prepare(
    inputs: Sequence[str],
    output_prefix: Path,
    tokenizer: TokenizerConfig,
    options: PrepareOptions,
    progress: Progress = lambda _report, _total: None,
) -> PrepareReport:
    """Write `output_prefix.bin/.idx`; InputError if input, tokenizer or output cannot be used.

    Files beside the output are left alone.
    """
    existing = [f"{output_prefix}{suffix}" for suffix in (".bin", ".idx") if Path(f"{output_prefix}{suffix}").exists()]
    if existing and not options.overwrite:
        raise InputError(f"{', '.join(existing)} exist already; choose another --output-prefix, or give --overwrite")
    units = cut_into_units(find_files(inputs))
    dtype = best_dtype(build_tokenizer(tokenizer).vocab_size)
    parts = _open_parts(output_prefix, units, tokenizer, options)
    report = _work(units, parts, tokenizer, options, dtype.str, progress)
    if report.documents == 0:
        shutil.rmtree(parts)
        raise InputError(f"the input holds no document with text ({len(report.empty)} empty ones)")
    _join(output_prefix, parts, len(units), dtype)
    shutil.rmtree(parts)
    return report


def _open_parts(prefix: Path, units: Sequence[Unit], tokenizer: TokenizerConfig, options: PrepareOptions) -> Path:
    """Return the folder of the part files; parts of another input, tokenizer or option are of no use and go."""
    parts = Path(f"{prefix}.parts")
    keep = {name: value for name, value in asdict(options).items() if name in ("json_key", "append_eod", "skip_broken")}
    stamps = [os.stat(file).st_mtime_ns for unit in units for file in unit.files]  # noqa: PTH116
    manifest = json.dumps([[asdict(unit) for unit in units], stamps, asdict(tokenizer), keep])
    digest = hashlib.sha256(manifest.encode()).hexdigest()
    marker = parts / "manifest"
    if parts.exists() and not (marker.exists() and marker.read_text() == digest):
        shutil.rmtree(parts)
    parts.mkdir(parents=True, exist_ok=True)
    marker.write_text(digest)
    return parts


def _work(
    units: Sequence[Unit], parts: Path, tokenizer: TokenizerConfig, options: PrepareOptions, dtype: str, progress: Progress
) -> PrepareReport:
    report, total = PrepareReport(), sum(unit.size for unit in units)
    missing = []
    for number, unit in enumerate(units):
        done = _read_report(parts, number)
        if done is None:
            missing.append((number, unit))
        else:
            report.add(done)
    progress(report, total)
    workers = min(options.workers or len(os.sched_getaffinity(0)), max(len(missing), 1))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, _open_worker, (tokenizer,)) as pool:
        futures = [pool.submit(_do_unit, number, unit, parts, options, dtype) for number, unit in missing]
        try:
            for future in as_completed(futures):
                report.add(future.result())
                progress(report, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return report


_opened: list[Tokenizer] = []
"""The tokenizer of this worker process."""


def _open_worker(config: TokenizerConfig) -> None:
    # The processes are the parallelism; threads of the library beside them only take turns on the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _opened.append(build_tokenizer(config))


def _do_unit(number: int, unit: Unit, parts: Path, options: PrepareOptions, dtype: str) -> PrepareReport:
    """Tokenize a unit into its part file; runs in a worker."""
    (tokenizer,) = _opened
    report = PrepareReport(bytes_read=unit.size)
    lengths: list[int] = []
    target = parts / f"{number:06d}"
    with target.with_suffix(".bin.tmp").open("wb") as file:
        for wheres, texts in _batches(unit, options, report):
            for where, ids in zip(wheres, tokenizer.tokenize_many(texts), strict=True):
                if not ids:
                    report.empty.append(where)
                    continue
                if options.append_eod:
                    ids.append(tokenizer.eod)
                file.write(np.asarray(ids, dtype).tobytes())
                lengths.append(len(ids))
    if report.broken and not options.skip_broken:
        raise InputError(_broken_text(report.broken))
    report.documents, report.tokens = len(lengths), sum(lengths)
    np.save(target.with_suffix(".lengths.npy"), np.asarray(lengths, np.int32))
    target.with_suffix(".bin.tmp").replace(target.with_suffix(".bin"))
    # The report comes last: a part counts as done only when it is there.
    draft = target.with_suffix(".json.tmp")
    draft.write_text(json.dumps(asdict(report)), encoding="utf-8")
    draft.replace(target.with_suffix(".json"))
    return report


def _batches(unit: Unit, options: PrepareOptions, report: PrepareReport) -> Iterator[tuple[list[str], list[str]]]:
    wheres: list[str] = []
    texts: list[str] = []
    for document in read_unit(unit, options.json_key):
        if document.problem is not None:
            report.broken.append(f"{document.where} {document.problem}")
            continue
        wheres.append(document.where)
        texts.append(document.text)
        if len(texts) == _BATCH:
            yield wheres, texts
            wheres, texts = [], []
    if texts:
        yield wheres, texts


def _broken_text(broken: Sequence[str]) -> str:
    shown = "\n  ".join(broken[:_SHOWN])
    more = f"\n  and {len(broken) - _SHOWN} more" if len(broken) > _SHOWN else ""
    return f"{len(broken)} documents cannot be read; mend them, or leave them out with --skip-broken:\n  {shown}{more}"


def _read_report(parts: Path, number: int) -> PrepareReport | None:
    file = parts / f"{number:06d}.json"
    return PrepareReport(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _join(prefix: Path, parts: Path, count: int, dtype: "np.dtype[np.generic]") -> None:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with IndexedDatasetBuilder(prefix, dtype) as builder:
        for number in range(count):
            lengths = np.load(parts / f"{number:06d}.lengths.npy")
            builder.add_tokens(parts / f"{number:06d}.bin", lengths)
