"""`primus data prepare | train-tokenizer | merge | show`: thin verbs over `primus.engine.data`, which loads when one runs."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from primus.cli.leaving import leaving_on_sigterm
from primus.cli.words import examples
from primus.errors import InputError

if TYPE_CHECKING:
    from primus.cli.rows import Cut, RowsOf
    from primus.engine.config import TokenizerConfig
    from primus.engine.data.prepare import PrepareReport

__all__ = ["app"]

app = typer.Typer(name="data", help="Prepare data and tokenizers.", no_args_is_help=True)

_SHOWN = 5


class Split(str, Enum):
    """Rows by use."""

    training = "training"
    validation = "validation"
    test = "test"


Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Files, folders or globs: text, .jsonl, .parquet; text and .jsonl also .gz."),
]
_ROWS_HELP = "Rows, or an experiment's YAML with KEY=VALUE words behind it"
Sft = Annotated[bool, typer.Option("--sft", help=f"Prepare rows to fine-tune on. INPUT: {_ROWS_HELP}.")]
SeqLength = Annotated[int | None, typer.Option(min=2, metavar="N", help="Rows: tokens of a sequence.")]
Packed = Annotated[bool, typer.Option("--packed", help="Rows: several in a sequence, in files for runs to read.")]
Seed = Annotated[int, typer.Option(help="Rows: seed of the packs; a run wants that of its own, which recipes set to 5678.")]
ByLength = Annotated[
    bool,
    typer.Option("--by-length", help="Rows: pack the longest first, which fills files of packs better than a random order."),
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


_PREPARE = examples(
    "primus data prepare my_text/ --output-prefix my_data --tokenizer-model my_tokenizer",
    "primus data prepare docs.jsonl --json-key content --output-prefix my_data --tokenizer-model my_tokenizer",
    "primus data prepare --sft my.yaml packed_sequence=true",
    "primus data prepare --sft rows.jsonl --output-prefix packs --tokenizer-model my_model --seq-length 2048 --packed",
)


@app.command("prepare", epilog=_PREPARE)
def prepare_(
    context: typer.Context,
    inputs: Inputs,
    output_prefix: Annotated[
        Path | None, typer.Option(metavar="PREFIX", help="Where to write PREFIX.bin and PREFIX.idx; for rows, a folder.")
    ] = None,
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
    sft: Sft = False,
    seq_length: SeqLength = None,
    packed: Packed = False,
    seed: Seed = 5678,
    by_length: ByLength = False,
) -> None:
    """Turn text into Megatron's .bin/.idx, or rows to fine-tune on into tokens and packs (--sft).

    A run over text that was stopped goes on when it is started again.
    """
    from primus.engine.config import TokenizerConfig

    tokenizer = TokenizerConfig(
        type=tokenizer_type,
        model=tokenizer_model,
        vocab_file=vocab_file,
        merge_file=merge_file,
        vocab_size=vocab_size,
        trust_remote_code=trust_remote_code,
    )
    if sft:
        from primus.cli.rows import Cut, prepare

        cut = Cut(seq_length=seq_length, packed=packed, seed=seed)
        rows = _rows(context, inputs, cut, tokenizer, cache=output_prefix, workers=workers)
        prepare(rows, output_prefix, overwrite=overwrite, by_length=by_length)
        return
    _refuse(context, (*_OF_ROWS, "by_length"), "is for rows: give --sft too")
    if output_prefix is None:
        raise InputError("--output-prefix is missing: where to write PREFIX.bin and PREFIX.idx")
    from primus.engine.data.prepare import PrepareOptions
    from primus.engine.data.prepare import prepare as prepare_text

    options = PrepareOptions(
        json_key=json_key,
        text_lines=text_lines,
        append_eod=append_eod,
        skip_broken=skip_broken,
        overwrite=overwrite,
        workers=workers,
    )
    with leaving_on_sigterm(), _progress() as progress:
        report = prepare_text(inputs, output_prefix, tokenizer, options, progress)
    _tell_left_out("empty", report.num_empty, report.empty)
    _tell_left_out("broken", report.num_broken, report.broken)
    typer.echo(f"{output_prefix}: {_counted(report.documents, 'document')}, {_counted(report.tokens, 'token')}")


@app.command(
    "train-tokenizer", epilog=examples("primus data train-tokenizer my_text/ --output my_tokenizer --vocab-size 32000")
)
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


@app.command("merge", epilog=examples("primus data merge first second --output-prefix both"))
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


_SHOW = examples(
    "primus data show my_data",
    "primus data show my.yaml --split validation --samples 1",
    "primus data show rows.jsonl --tokenizer-model my_model --seq-length 2048",
)


@app.command("show", epilog=_SHOW)
def show_(
    context: typer.Context,
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT", help=f"Prefix of a .bin and an .idx file. {_ROWS_HELP}.")],
    split: Annotated[Split, typer.Option(help="Rows: which of them.")] = Split.training,
    samples: Annotated[int, typer.Option(min=1, metavar="N", help="Rows: how many.")] = 3,
    start: Annotated[int, typer.Option(min=0, metavar="N", help="Rows: the first, counted from 0.")] = 0,
    tokenizer_type: TokenizerType = "HuggingFaceTokenizer",
    tokenizer_model: TokenizerModel = None,
    vocab_size: VocabSize = None,
    seq_length: SeqLength = None,
) -> None:
    """Tell what a dataset holds, or show samples of rows with what is trained in [[brackets]]."""
    from primus.cli.rows import Cut, is_experiment, show
    from primus.engine.config import TokenizerConfig

    if not is_experiment(inputs) and seq_length is None:
        _refuse(context, _OF_SHOWN_ROWS, "is for rows: name an experiment, or rows with --seq-length and a tokenizer")
        if len(inputs) > 1:
            raise InputError(f"{' '.join(inputs)}: name one dataset by its prefix")
        if Path(inputs[0]).exists() and not Path(f"{inputs[0]}.bin").exists():
            raise InputError(
                f"{inputs[0]} is no prefix; of rows, name an experiment, or give --seq-length and --tokenizer-model"
            )
        _describe(Path(inputs[0]))
        return
    tokenizer = TokenizerConfig(type=tokenizer_type, model=tokenizer_model, vocab_size=vocab_size)
    cut = Cut(seq_length=seq_length, packed=False, seed=0)
    show(_rows(context, inputs, cut, tokenizer, cache=None), split.value, start, samples)


_OF_TEXT = ("json_key", "text_lines", "append_eod", "skip_broken")
_OF_ROWS = ("seq_length", "packed", "seed")
_OF_SHOWN_ROWS = ("split", "samples", "start", "tokenizer_type", "tokenizer_model", "vocab_size")
_OF_EXPERIMENTS = (
    *_OF_ROWS,
    "tokenizer_type",
    "tokenizer_model",
    "vocab_file",
    "merge_file",
    "vocab_size",
    "trust_remote_code",
)
"""Options in whose place an experiment has keys."""


def _rows(
    context: typer.Context, inputs: list[str], cut: "Cut", tokenizer: "TokenizerConfig", *, cache: Path | None, workers: int = 0
) -> "RowsOf":
    from primus.cli.rows import is_experiment, of_experiment, of_files

    _refuse(context, _OF_TEXT, "is for text, and rows are named: leave it out")
    if is_experiment(inputs):
        _refuse(context, _OF_EXPERIMENTS, f"is said by the experiment {inputs[0]}: leave it out, or give its KEY=VALUE")
        return of_experiment(inputs, workers=workers)
    return of_files(inputs, cut, tokenizer, cache=cache, workers=workers)


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that were given and would do nothing."""
    sources = {name: context.get_parameter_source(name) for name in names}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    if given:
        raise InputError(f"--{given[0].replace('_', '-')} {why}")


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
