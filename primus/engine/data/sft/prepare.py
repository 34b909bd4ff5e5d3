"""`prepare_rows`: rows to tokens and packs before a run, with a report of what became of them. No torch.

A run finds the tokens by what decides them. Packs are written as files as well where that is asked for, for other places and
programs. Each file appears when it is whole, so one that was cut short is none.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus.engine.data.output import check_output_folder, writing
from primus.engine.data.sft.opening import Opened, Opener
from primus.engine.data.sft.packed_files import write_packs
from primus.engine.data.sft.packing import Packs
from primus.engine.data.sft.picture import draw_lengths
from primus.engine.data.sft.shape import Shape
from primus.engine.data.sft.sources import Splits
from primus.engine.data.sft.tokens import Progress, Tokens
from primus.errors import InputError

__all__ = ["PackReport", "Places", "SplitReport", "prepare_rows"]

_BINS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class PackReport:
    """What packs came to, in Megatron Bridge's words."""

    pack_size: int
    num_packs: int
    packing_factor: float
    """Samples a pack."""
    packing_efficiency: float
    """Percent of the tokens of sequences that are a sample's."""
    dataset_max_seqlen: int
    """Tokens of the longest sample."""
    max_samples_per_bin: int
    min_packed_seqlen: int
    """Tokens of the emptiest pack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitReport:
    """What the rows of a split came to."""

    split: str
    rows: int
    tokens: int
    """Tokens that the model reads."""
    trained_tokens: int
    """Tokens that have a loss."""
    cut_rows: int
    """Rows that lost tokens to the length of a sequence."""
    cut_tokens: int
    mute_rows: int
    """Rows without a trained token."""
    longest: int
    lengths: tuple[tuple[int, int], ...]
    """For each range of lengths its upper end, and how many samples are in it."""
    packs: PackReport | None
    file: str | None
    """Where the packs are written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a preparation writes what runs do not find by themselves."""

    folder: Path
    """Of the report."""
    files: Mapping[str, Path]
    """Of the packs of splits; only these splits are prepared, if there are any."""
    metadata: Path
    """What packs came to."""


def prepare_rows(
    splits: Splits, opener: Opener, places: Places, *, overwrite: bool = False, progress: Progress | None = None
) -> list[SplitReport]:
    """Tokenise, and pack if the run packs; InputError if a row is no sample, or a place cannot be written."""
    named = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    given = {name: rows for name, rows in named.items() if rows is not None and (not places.files or name in places.files)}
    _check_places(places, overwrite=overwrite)
    reports = []
    for name, rows in given.items():
        opened = opener.open(rows, name, prepares=True, progress=progress)
        file = places.files.get(name)
        if file is not None and opened.packs is not None and isinstance(opened.samples, Tokens):
            with writing(file):
                write_packs(file, opened.samples, opened.packs, opener.note(rows))
        reports.append(_report(name, opened, opener.shape, file))
    with writing(places.folder):
        _write_report(places, opener.shape.seq_length, reports)
    return reports


def _check_places(places: Places, *, overwrite: bool) -> None:
    for file in (places.folder / "report.json", *places.files.values(), places.metadata):
        check_output_folder(file.parent, [file.name])
    existing = [str(file) for file in places.files.values() if file.exists()]
    if existing and not overwrite:
        raise InputError(f"{', '.join(existing)} exist already; choose another place, or give --overwrite")
    for file in (*places.files.values(), places.metadata, places.folder / "report.json"):
        file.parent.mkdir(parents=True, exist_ok=True)


def _report(name: str, opened: Opened, shape: Shape, file: Path | None) -> SplitReport:
    tokens = opened.samples
    assert isinstance(tokens, Tokens), "rows that are prepared are tokens"
    lengths, learnt = tokens.lengths, tokens.num_trained
    return SplitReport(
        split=name,
        rows=len(tokens),
        tokens=int(lengths.sum()),
        trained_tokens=int(learnt.sum()),
        cut_rows=int((tokens.lost > 0).sum()),
        cut_tokens=int(tokens.lost.sum(dtype=np.int64)),
        mute_rows=int((learnt == 0).sum()),
        longest=int(lengths.max()),
        lengths=tuple(_histogram(lengths, shape.seq_length)),
        packs=None if opened.packs is None else _packs(tokens, opened.packs, shape),
        file=None if file is None else str(file),
    )


def _histogram(lengths: NDArray[np.int64], size: int) -> Iterator[tuple[int, int]]:
    width = max(1, -(-size // _BINS))
    counts = np.bincount((lengths - 1) // width, minlength=-(-size // width))
    for number, count in enumerate(counts):
        yield (number + 1) * width, int(count)


def _packs(tokens: Tokens, packs: Packs, shape: Shape) -> PackReport:
    lengths, size, step = tokens.lengths, shape.seq_length, shape.segment_multiple
    filled = (-(-lengths // step) * step)[packs.numbers]
    return PackReport(
        pack_size=size,
        num_packs=len(packs),
        packing_factor=round(len(tokens) / len(packs), 3),
        packing_efficiency=round(100 * int(lengths.sum()) / (len(packs) * size), 3),
        dataset_max_seqlen=int(lengths.max()),
        max_samples_per_bin=int(packs.counts.max()),
        min_packed_seqlen=int(np.add.reduceat(filled, packs.bounds[:-1]).min()),
    )


def _write_report(places: Places, size: int, reports: list[SplitReport]) -> None:
    """Write the report, the picture of lengths and, as Bridge does, an entry a split about packs."""
    _write(places.folder / "report.json", json.dumps([asdict(report) for report in reports], indent=2))
    packed: list[dict[str, Any]] = [asdict(report.packs) for report in reports if report.packs is not None]
    if packed:
        _write(places.metadata, "".join(json.dumps(entry) + "\n" for entry in packed))
    draw_lengths(places.folder / "lengths.png", {report.split: report.lengths for report in reports}, size)


def _write(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)
