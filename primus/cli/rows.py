"""Rows to fine-tune on at the command line: `prepare_experiment` and `prepare_files` before a run, `show_rows` to look at them.

An experiment says all that decides its samples, so what is prepared by it is what its run looks for.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from primus.cli.doors import build, fewest_ranks, only_module
from primus.cli.leaving import leaving_on_sigterm
from primus.cli.weights import with_tokenizer
from primus.core.experiment import load_experiment
from primus.engine.config import PackingConfig, SFTConfig, TokenizerConfig
from primus.engine.data.sft.opening import Opener
from primus.engine.data.sft.own_packs import open_packs
from primus.engine.data.sft.prepare import Places, SplitReport, prepare_rows
from primus.engine.data.sft.samples import Sample
from primus.engine.data.sft.shape import Shape
from primus.engine.data.sft.show import stretches
from primus.engine.data.sft.sources import open_splits
from primus.engine.data.tokenizer import Tokenizer, build_tokenizer
from primus.errors import InputError

__all__ = ["Cut", "RowsOf", "is_experiment", "of_experiment", "of_files", "prepare", "show"]

_BAR = 40
"""Characters of the longest bar."""
_LINES = 10
"""Bars, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """How rows without an experiment become sequences."""

    seq_length: int | None
    packed: bool
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsOf:
    """Rows, and what makes samples of them."""

    rows: SFTConfig
    opener: Opener
    tokenizer: Tokenizer


def is_experiment(inputs: Sequence[str]) -> bool:
    """Tell whether rows are named by an experiment."""
    return Path(inputs[0]).suffix in (".yaml", ".yml")


def of_experiment(inputs: Sequence[str], *, workers: int = 0) -> RowsOf:
    """Return the rows of an experiment's module; its file comes first, KEY=VALUE words behind it."""
    file, *words = inputs
    experiment = load_experiment(Path(file), words, os.environ)
    module = only_module(experiment, "post_trainer")
    config = with_tokenizer(build(experiment, module, fewest_ranks(module)))
    if config.dataset.sft is None:
        raise InputError(f"{file} trains on documents, which `primus data` takes without --sft; rows are of stage sft")
    rows = replace(config.dataset.sft, workers=workers or config.dataset.sft.workers)
    tokenizer = build_tokenizer(config.tokenizer)
    return RowsOf(rows=rows, opener=Opener.of(config, rows, tokenizer), tokenizer=tokenizer)


def of_files(inputs: Sequence[str], cut: Cut, named: TokenizerConfig, *, cache: Path | None, workers: int = 0) -> RowsOf:
    """Return rows by their file, folder or name on the hub, all else at its default."""
    if len(inputs) > 1:
        given = " ".join(inputs)
        raise InputError(f"{given}: --sft takes one file, folder or name of rows, or an experiment with KEY=VALUE words")
    if cut.seq_length is None:
        raise InputError("--sft needs --seq-length, the tokens of a sequence, or an experiment in place of rows")
    place = Path(inputs[0])
    rows = SFTConfig(
        train=str(place.absolute()) if place.exists() else inputs[0],
        do_test=True,
        val_proportion=None,
        prefer_own_validation=True,
        seed=cut.seed,
        packing=PackingConfig(size=cut.seq_length) if cut.packed else None,
        cache=None if cache is None else str(cache.absolute()),
        workers=workers,
    )
    tokenizer = build_tokenizer(named)
    shape = Shape(seq_length=cut.seq_length, multiple=rows.pad_multiple, segment_multiple=1, is_fixed=False, end=tokenizer.eod)
    return RowsOf(rows=rows, opener=Opener(rows, tokenizer, named, shape), tokenizer=tokenizer)


def prepare(made: RowsOf, output: Path | None, *, overwrite: bool, by_length: bool) -> None:
    """Tokenise and pack, and tell what became of the rows."""
    places = _places(made, output)
    if by_length:
        made = _by_length(made, places)
    with leaving_on_sigterm(), _progress() as progress:
        reports = prepare_rows(open_splits(made.rows), made.opener, places, overwrite=overwrite, progress=progress)
    for report in reports:
        for line in _told(report):
            typer.echo(line)
    typer.echo(f"tokens: {made.opener.folder}; report: {places.folder / 'report.json'}, {places.folder / 'lengths.png'}")


def _by_length(made: RowsOf, places: Places) -> RowsOf:
    """Return the same rows, packed in another order."""
    packing, opener = made.rows.packing, made.opener
    if packing is None or not places.files:
        raise InputError(
            "--by-length is for files of packs, of which a run takes any: give --output-prefix, and rows that are packed"
        )
    rows = replace(made.rows, packing=replace(packing, algorithm="first_fit_decreasing"))
    return replace(made, rows=rows, opener=opener.with_rows(rows))


def _places(made: RowsOf, output: Path | None) -> Places:
    """Return where to write: the folder that is asked for, else where the experiment says that its packs lie."""
    size, packing = made.opener.shape.seq_length, made.rows.packing
    if output is not None:
        files = {name: output / f"{name}_{size}.parquet" for name in ("training", "validation", "test")} if packing else {}
        return Places(folder=output, files=files, metadata=output / f"{size}_metadata.jsonl")
    if packing is None or packing.train_file is None:
        folder = made.opener.folder
        return Places(folder=folder, files={}, metadata=folder / f"{size}_metadata.jsonl")
    named = {"training": packing.train_file, "validation": packing.validation_file}
    files = {name: Path(file) for name, file in named.items() if file is not None}
    for file in files.values():
        if file.suffix != ".parquet":
            raise InputError(f"{file} is to hold packed samples, which are written to one file that ends in .parquet")
    folder = files["training"].parent
    return Places(folder=folder, files=files, metadata=Path(packing.metadata_file or folder / f"{size}_metadata.jsonl"))


def _told(report: SplitReport) -> Iterator[str]:
    share = 100 * report.trained_tokens / max(1, report.tokens)
    yield (
        f"{report.split}: {report.rows:,d} rows, {report.tokens:,d} tokens, {report.trained_tokens:,d} of them trained "
        f"({share:.1f} %), the longest row {report.longest:,d}"
    )
    if report.cut_rows:
        yield f"  {report.cut_rows:,d} rows are cut, by {report.cut_tokens:,d} tokens in all"
    if report.mute_rows:
        yield f"  {report.mute_rows:,d} rows have no token left to train on"
    yield from _bars(report.lengths)
    if report.packs is not None:
        packs, place = report.packs, "" if report.file is None else f": {report.file}"
        yield (
            f"  {packs.num_packs:,d} packs of {packs.pack_size:,d} tokens, {packs.packing_factor:.2f} rows a pack, "
            f"{packs.packing_efficiency:.1f} % full{place}"
        )


def _bars(lengths: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield how many rows are how long, a line a range."""
    step = -(-len(lengths) // _LINES)
    groups = [lengths[start : start + step] for start in range(0, len(lengths), step)]
    counts = [(group[-1][0], sum(count for _, count in group)) for group in groups]
    most, width = max(count for _, count in counts), len(str(counts[-1][0]))
    for end, count in counts:
        yield f"  up to {end:{width}d} tokens {'#' * -(-_BAR * count // most):{_BAR}s} {count:,d}"


def show(made: RowsOf, split: str, start: int, count: int) -> None:
    """Print samples, in brackets and in another colour what is trained."""
    console = Console(highlight=False, soft_wrap=True)
    for title, sample in islice(_samples(made, split, start), count):
        learnt, lost = int(sample.trained[1:].sum()), f", {sample.lost} cut" if sample.lost else ""
        console.print(Text(f"{title}: {len(sample.ids)} tokens, {learnt} trained{lost}", style="bold"))
        text = Text()
        for stretch in stretches(sample, made.tokenizer):
            text.append(f"[[{stretch.text}]]" if stretch.is_trained else stretch.text, "green" if stretch.is_trained else "")
        console.print(text)
        console.print()


def _samples(made: RowsOf, split: str, start: int) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of a split with their names; those of files of packs where the experiment trains on these."""
    packing = made.rows.packing
    files = {} if packing is None else {"training": packing.train_file, "validation": packing.validation_file}
    if packing is not None and packing.train_file is not None:
        file = files.get(split)
        if file is None:
            raise InputError(f"there are no {split} rows: the experiment trains on packed files, and names none for them")
        opened = open_packs(made.opener, file, "packed samples", split)
        numbers = range(start, len(opened.samples))
        yield from ((f"{file}, sample {number}", opened.samples[number]) for number in numbers)
        return
    splits = open_splits(replace(made.rows, do_test=split == "test"))
    rows = {"training": splits.train, "validation": splits.validation, "test": splits.test}[split]
    if rows is None:
        raise InputError(f"there are no {split} rows")
    samples = made.opener.samples(rows)
    yield from ((rows.name(number), samples[number]) for number in range(start, len(rows)))


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show rows that are done while the body runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    with ExitStack() as shown:

        def progress(done: int, total: int) -> None:
            if not bar.tasks:
                # Not before there is work: a refusal is no place for an empty bar.
                shown.enter_context(bar)
            if not bar.tasks or bar.tasks[-1].finished:
                bar.add_task("", total=total)
            bar.update(bar.tasks[-1].id, completed=done)

        yield progress
