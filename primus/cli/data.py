"""`primus data prepare | train-tokenizer | merge | show`: thin verbs over `primus.engine.data`, which loads when one runs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus.cli.leaving import leaving_on_sigterm

if TYPE_CHECKING:
    from primus.engine.data.prepare import PrepareReport

__all__ = ["app"]

app = typer.Typer(name="data", help="Prepare data and tokenizers.", no_args_is_help=True)

_SHOWN = 5

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Files, folders or globs: text, .jsonl, .parquet; text and .jsonl also .gz."),
]
OutputPrefix = Annotated[Path, typer.Option(metavar="PREFIX", help="Where to write PREFIX.bin and PREFIX.idx.")]
JsonKey = Annotated[str, typer.Option(metavar="NAME", help="Field of a JSON line, or column of a parquet file.")]
TokenizerType = Annotated[
    str, typer.Option(metavar="KIND", help="Kind of tokenizer; see `primus config explain tokenizer_type`.")
]
TokenizerModel = Annotated[str | None, typer.Option(metavar="NAME", help="Folder, file or hub id of the tokenizer.")]
VocabFile = Annotated[str | None, typer.Option(metavar="FILE", help="Vocabulary of a GPT2BPETokenizer or a BertWordPiece one.")]
MergeFile = Annotated[str | None, typer.Option(metavar="FILE", help="Merge list of a GPT2BPETokenizer.")]
VocabSize = Annotated[int | None, typer.Option(metavar="N", help="Ids of a NullTokenizer or TikTokenizer.")]
TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Let a hub tokenizer run code of its own.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what exists.")]


@app.command("prepare")
def prepare_(
    inputs: Inputs,
    output_prefix: OutputPrefix,
    tokenizer_type: TokenizerType = "HuggingFaceTokenizer",
    tokenizer_model: TokenizerModel = None,
    vocab_file: VocabFile = None,
    merge_file: MergeFile = None,
    vocab_size: VocabSize = None,
    trust_remote_code: TrustRemoteCode = False,
    json_key: JsonKey = "text",
    text_lines: Annotated[
        bool, typer.Option("--text-lines", help="Each line of a text file is a document, not the file.")
    ] = False,
    append_eod: Annotated[bool, typer.Option(help="End documents with the end-of-document token.")] = True,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core.")] = 0,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out what cannot be read.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn text into Megatron's .bin/.idx. A run that was stopped goes on when it is started again."""
    from primus.engine.config import TokenizerConfig
    from primus.engine.data.prepare import PrepareOptions, prepare

    tokenizer = TokenizerConfig(
        type=tokenizer_type,
        model=tokenizer_model,
        vocab_file=vocab_file,
        merge_file=merge_file,
        vocab_size=vocab_size,
        trust_remote_code=trust_remote_code,
    )
    options = PrepareOptions(
        json_key=json_key,
        text_lines=text_lines,
        append_eod=append_eod,
        skip_broken=skip_broken,
        overwrite=overwrite,
        workers=workers,
    )
    with leaving_on_sigterm(), _progress() as progress:
        report = prepare(inputs, output_prefix, tokenizer, options, progress)
    _tell_left_out("empty", report.num_empty, report.empty)
    _tell_left_out("broken", report.num_broken, report.broken)
    typer.echo(f"{output_prefix}: {_counted(report.documents, 'document')}, {_counted(report.tokens, 'token')}")


@app.command("train-tokenizer")
def train_tokenizer_(
    inputs: Inputs,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Ids, at most.")] = 32_000,
    json_key: JsonKey = "text",
    overwrite: Overwrite = False,
) -> None:
    """Train a byte-level BPE tokenizer and save it as a Hugging Face folder."""
    from primus.engine.data.prepare import train_tokenizer

    trained = train_tokenizer(
        inputs, output, vocab_size=vocab_size, json_key=json_key, overwrite=overwrite, show_progress=sys.stderr.isatty()
    )
    _tell_left_out("broken", trained.num_broken, trained.broken)
    if trained.vocab_size < vocab_size:
        typer.echo(f"the text has pairs for {trained.vocab_size:,d} of {vocab_size:,d} ids only", err=True)
    typer.echo(f"{output}: {trained.vocab_size:,d} ids; use tokenizer_type HuggingFaceTokenizer and tokenizer_model {output}")


@app.command("merge")
def merge_(
    prefixes: Annotated[
        list[Path], typer.Argument(metavar="PREFIX", help="Prefixes of .bin and .idx files, in the order to come.")
    ],
    output_prefix: OutputPrefix,
    overwrite: Overwrite = False,
) -> None:
    """Put several datasets together as one."""
    from primus.engine.data.indexed import merge
    from primus.engine.data.output import check_output_prefix, writing

    check_output_prefix(output_prefix)
    with writing(output_prefix):
        merge(prefixes, output_prefix, overwrite=overwrite)
    _describe(output_prefix)


@app.command("show")
def show(prefix: Annotated[Path, typer.Argument(metavar="PREFIX", help="Prefix of a .bin and an .idx file.")]) -> None:
    """Tell what a dataset holds."""
    _describe(prefix)


def _describe(prefix: Path) -> None:
    from primus.engine.data.indexed import IndexedDataset

    dataset = IndexedDataset(prefix)
    lengths = dataset.sequence_lengths
    tokens = int(lengths.sum(dtype="int64"))
    longest = int(lengths.max(initial=0))
    held = f"{_counted(len(dataset), 'document')}, {_counted(tokens, 'token')} ({dataset.dtype})"
    typer.echo(f"{prefix}: {held}, the longest document {longest:,d}")


@contextmanager
def _progress() -> Iterator[Callable[["PrepareReport", int], None]]:
    """Show bytes read and tokens a second while the body runs."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task("", total=None, rate="")
    found: int | None = None
    with ExitStack() as shown:

        def show(report: "PrepareReport", total: int) -> None:
            nonlocal found
            if found is None:
                # Not before there is work: a refusal is no place for an empty bar.
                found = report.tokens
                shown.enter_context(bar)
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{(report.tokens - found) / elapsed:,.0f} tokens/s" if elapsed > 0 else ""
            bar.update(task, total=total, completed=report.bytes_read, rate=rate)

        yield show


def _tell_left_out(kind: str, count: int, places: list[str]) -> None:
    if count:
        shown = "".join(f"\n  {place}" for place in places[:_SHOWN])
        more = f"\n  and {count - _SHOWN} more" if count > _SHOWN else ""
        typer.echo(f"{_counted(count, f'{kind} document')} left out:{shown}{more}", err=True)


def _counted(count: int, noun: str) -> str:
    return f"{count:,d} {noun}" if count == 1 else f"{count:,d} {noun}s"
