"""The `primus` command. `main` is its entry; exit codes: 0 done, 2 the input is wrong, 3 the run failed.

Nothing here imports torch: a run starts in a process of its own.
"""

import sys
from typing import Annotated

import typer

from primus import __version__
from primus.cli import checkpoint, config, data, generate, pipeline, train
from primus.cli.report import tell_error
from primus.errors import PrimusError

__all__ = ["app", "main"]

app = typer.Typer(
    name="primus",
    help="Train large language models from one YAML file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # its tables cut names and defaults short on a terminal of 80 columns
    pretty_exceptions_enable=False,
)
app.add_typer(train.app)
app.add_typer(config.app)
app.add_typer(data.app)
app.add_typer(pipeline.app)
app.add_typer(checkpoint.app)
app.add_typer(generate.app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"primus {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train large language models from one YAML file."""


def main() -> None:
    """Run the command line; a mistake of the user ends as one block of text and an exit code."""
    try:
        app()
    except PrimusError as error:
        tell_error(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
