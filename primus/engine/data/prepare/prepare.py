"""`prepare`: text, JSON lines or parquet to Megatron's `.bin/.idx`, by many processes, resumable. No torch.

Each unit of work becomes a part file under `PREFIX.parts/`, written whole or not at all; the parts are joined in order at
the end. A run that was killed is repeated with the same command and goes on with the parts that are missing; the bytes
are the same either way.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from primus.cores import num_cores
from primus.engine.config import TokenizerConfig
from primus.engine.data.indexed import IndexedDatasetBuilder, best_dtype
from primus.engine.data.output import check_output_prefix, writing
from primus.engine.data.prepare.parts import Fault, Part, Parts
from primus.engine.data.prepare.sources import LineCounter, Unit, cut_into_units, find_files
from primus.engine.data.prepare.work import Work, parts_of, tokenize_unit
from primus.engine.data.tokenizer import build_tokenizer
from primus.errors import InputError

__all__ = ["PrepareOptions", "PrepareReport", "prepare"]

_SHOWN = 10
"""Broken documents that an error names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    """What a preparation does."""

    json_key: str = "text"
    """Field of a JSON line, or column of a parquet file."""
    text_lines: bool = False
    """Each line of a text file is a document; otherwise the file is one."""
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
    num_empty: int = 0
    """Documents without any token; they are left out."""
    num_broken: int = 0
    """Documents that cannot be read; they are left out."""
    empty: list[str] = field(default_factory=list)
    """Where the first empty ones of each unit stand: `file:line`, or the file."""
    broken: list[str] = field(default_factory=list)
    """Where the first broken ones of each unit stand, and why."""

    def add(self, part: Part) -> None:
        """Count a part in."""
        self.documents += part.documents
        self.tokens += part.tokens
        self.bytes_read += part.size
        self.num_empty += part.num_empty
        self.num_broken += part.num_broken


Progress = Callable[[PrepareReport, int], None]
"""Called with the report so far and the bytes of all input; first before any work, when a resumed run counts what it found."""


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
    check_output_prefix(output_prefix)
    units = cut_into_units(find_files(inputs), text_lines=options.text_lines)
    dtype = best_dtype(build_tokenizer(tokenizer).vocab_size)
    parts = Parts(output_prefix, units, tokenizer, append_eod=options.append_eod, json_key=options.json_key)
    existing = [f"{output_prefix}{suffix}" for suffix in (".bin", ".idx") if Path(f"{output_prefix}{suffix}").exists()]
    if existing and not options.overwrite and not parts.are_ours():
        raise InputError(f"{', '.join(existing)} exist already; choose another --output-prefix, or give --overwrite")
    with writing(output_prefix):
        parts.open()
        work = Work(parts.folder, tokenizer, options.json_key, options.append_eod, dtype.str)
        try:
            report = _collect(units, parts, work, options, progress)
        except InputError:
            parts.remove_unless_used()
            raise
        if report.documents == 0:
            parts.remove()
            raise InputError(f"the input holds no document with text ({report.num_empty} empty)")
        with IndexedDatasetBuilder(output_prefix, dtype) as builder:
            for number in range(len(units)):
                builder.add_tokens(*parts.tokens_and_lengths(number))
        parts.remove()
    return report


def _collect(units: Sequence[Unit], parts: Parts, work: Work, options: PrepareOptions, progress: Progress) -> PrepareReport:
    """Do what is missing; the report and the first error are those of the input's order, whatever worker was faster."""
    done = {number: part for number in range(len(units)) if (part := parts.read(number)) is not None}
    missing = [number for number in range(len(units)) if number not in done]
    report, total = PrepareReport(), sum(unit.size for unit in units)
    for part in done.values():
        report.add(part)
    progress(report, total)
    with _results(units, missing, work, options.workers) as results:
        for number, result in results:
            done[number] = result
            report.add(result)
            progress(report, total)
            if result.num_broken and not options.skip_broken:
                break
    lines = LineCounter()
    for number, part in sorted(done.items()):
        broken = [_place(units[number], fault, lines) for fault in part.broken]
        if broken and not options.skip_broken:
            # Read again next time: what a file's permissions hide may be there then, though the file is the same.
            parts.forget(number)
            kept = f" (which goes on from what is done, in {parts.folder})" if len(done) > 1 else ""
            raise InputError(_broken_text(part.num_broken, broken[:_SHOWN], kept))
        report.empty += [_place(units[number], fault, lines) for fault in part.empty]
        report.broken += broken
    return report


@contextmanager
def _results(units: Sequence[Unit], missing: Sequence[int], work: Work, workers: int) -> Iterator[Iterator[tuple[int, Part]]]:
    """Give the parts of the missing units as they come, in order; alone in this process if one worker is enough."""
    count = min(workers or num_cores(), len(missing))
    chosen = [units[number] for number in missing]
    if count <= 1:
        yield zip(missing, map(partial(tokenize_unit, work, build_tokenizer(work.tokenizer)), missing, chosen), strict=True)
        return
    with parts_of(missing, chosen, count=count, work=work) as made:
        yield zip(missing, made, strict=True)


def _place(unit: Unit, fault: Fault, lines: LineCounter) -> str:
    file, line, problem = fault
    return f"{lines.place(unit, file, line)} {problem}".rstrip()


def _broken_text(count: int, places: Sequence[str], kept: str) -> str:
    shown = "\n  ".join(places)
    more = f"\n  and {count - len(places)} more there" if count > len(places) else ""
    documents = "document" if count == 1 else "documents"
    return f"{count} {documents} cannot be read; mend what is wrong, or leave it out with --skip-broken{kept}:\n  {shown}{more}"
