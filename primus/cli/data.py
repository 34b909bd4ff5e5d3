"""`primus data prepare | train-tokenizer`: thin verbs over `primus.engine.data.prepare`, which loads when a verb runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from primus.engine.data.prepare import PrepareReport

__all__ = ["app"]

app = typer.Typer(name="data", help="Prepare data and tokenizers.", no_args_is_help=True)

_SHOWN = 5

Inputs = Annotated[list[str], typer.Argument(help="Files, folders or globs: text, .jsonl, .parquet.")]
JsonKey = Annotated[str, typer.Option(help="Field of a JSON line, or column of a parquet file.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what exists.")]


@app.command("prepare")
def prepare_(
    inputs: Inputs,
    output_prefix: Annotated[Path, typer.Option(help="Prefix of the .bin and .idx file.")],
    tokenizer_type: Annotated[str, typer.Option(help="As the key of that name.")] = "HuggingFaceTokenizer",
    tokenizer_model: Annotated[str | None, typer.Option(help="As the key of that name.")] = None,
    vocab_file: Annotated[str | None, typer.Option(help="As the key of that name.")] = None,
    merge_file: Annotated[str | None, typer.Option(help="As the key of that name.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="As the key of that name.")] = None,
    json_key: JsonKey = "text",
    append_eod: Annotated[bool, typer.Option(help="End documents with the end-of-document token.")] = True,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0: one a core.")] = 0,
    skip_broken: Annotated[bool, typer.Option("--skip-broken", help="Leave out what cannot be read.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Turn text into Megatron's .bin/.idx. A run that was stopped goes on when it is started again."""
    from primus.engine.config import TokenizerConfig
    from primus.engine.data.prepare import PrepareOptions, prepare

    tokenizer = TokenizerConfig(
        type=tokenizer_type, model=tokenizer_model, vocab_file=vocab_file, merge_file=merge_file, vocab_size=vocab_size
    )
    options = PrepareOptions(
        json_key=json_key, append_eod=append_eod, skip_broken=skip_broken, overwrite=overwrite, workers=workers
    )
    with _progress() as progress:
        report = prepare(inputs, output_prefix, tokenizer, options, progress)
    for kind, places in (("empty", report.empty), ("broken", report.broken)):
        if places:
            shown = "".join(f"\n  {place}" for place in places[:_SHOWN])
            typer.echo(f"{len(places)} {kind} documents left out:{shown}{_more(places)}", err=True)
    typer.echo(f"{output_prefix}: {report.documents:,d} documents, {report.tokens:,d} tokens")


@app.command("train-tokenizer")
def train_tokenizer_(
    inputs: Inputs,
    output: Annotated[Path, typer.Option(help="Folder of the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Ids, at most.")] = 32_000,
    json_key: JsonKey = "text",
    overwrite: Overwrite = False,
) -> None:
    """Train a byte-level BPE tokenizer and save it as a Hugging Face folder."""
    from primus.engine.data.prepare import train_tokenizer

    size = train_tokenizer(inputs, output, vocab_size=vocab_size, json_key=json_key, overwrite=overwrite)
    typer.echo(f"{output}: {size:,d} ids; use tokenizer_type HuggingFaceTokenizer and tokenizer_model {output}")


@contextmanager
def _progress() -> Iterator[Callable[["PrepareReport", int], None]]:
    """Show bytes read and tokens a second while the body runs."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), DownloadColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, rate="")

        def show(report: "PrepareReport", total: int) -> None:
            elapsed = bar.tasks[0].elapsed or 0.0
            rate = f"{report.tokens / elapsed:,.0f} tokens/s" if elapsed > 0 else ""
            bar.update(task, total=total, completed=report.bytes_read, rate=rate)

        yield show


def _more(places: list[str]) -> str:
    return f"\n  and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
