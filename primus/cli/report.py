"""How the command line talks: one block for errors, one line for each notice, both on stderr; results go to stdout."""

from collections.abc import Iterable

import typer

from primus.errors import InputError, PrimusError

__all__ = ["tell", "tell_error"]


def tell_error(error: PrimusError) -> None:
    """Print what is wrong as one block without a traceback."""
    problems = error.problems if isinstance(error, InputError) else (str(error),)
    head = typer.style("error:", fg=typer.colors.RED, bold=True)
    if len(problems) == 1:
        typer.echo(f"{head} {problems[0]}", err=True)
        return
    typer.echo(f"{head} {len(problems)} problems", err=True)
    for problem in problems:
        typer.echo(f"  - {problem}", err=True)


def tell(notices: Iterable[str]) -> None:
    """Print each notice on a line of its own."""
    for notice in notices:
        typer.echo(f"{typer.style('note:', fg=typer.colors.YELLOW, bold=True)} {notice}", err=True)
