"""`primus config validate`: every value by itself and against the others, on any number of files.

Data, tokenizer and checkpoints need not be on the machine where an experiment is written: `train --dry-run` looks at those.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from primus.cli.doors import build, fewest_ranks
from primus.cli.report import tell, tell_error
from primus.core.experiment import Experiment, load_experiment
from primus.core.launch import check_numbers
from primus.errors import EXIT_INPUT, ConfigError, InputError

__all__ = ["validate"]


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Experiment YAMLs.", show_default=False)],
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Ranks of the run.", show_default="WORLD_SIZE, or the fewest that fit")
    ] = None,
) -> None:
    """Check the values of experiments. What lies on disk (data, tokenizer, checkpoints) `train --dry-run` looks at."""
    check_numbers(os.environ)
    asked = world_size or int(os.environ.get("WORLD_SIZE", "0")) or None
    results = [_is_valid(file, asked, is_one=len(files) == 1) for file in files]
    if not all(results):
        raise typer.Exit(EXIT_INPUT)


def _is_valid(file: Path, asked: int | None, *, is_one: bool) -> bool:
    try:
        experiment = load_experiment(file, (), os.environ)
        summaries, notices = _checked_modules(experiment, asked)
    except InputError as error:
        typer.echo(f"{file}: wrong")
        tell_error(error)
        return False
    tell(notices if is_one else [f"{file}: {notice}" for notice in notices])
    typer.echo(f"{file}: ok ({'; '.join(summaries)})")
    return True


def _checked_modules(experiment: Experiment, asked: int | None) -> tuple[list[str], list[str]]:
    """Return a line about each module, and what is surprising; ConfigError with the problems of all of them."""
    problems: list[str] = []
    summaries: list[str] = []
    notices: list[str] = []
    for role, module in experiment.modules.items():
        ranks = asked or fewest_ranks(module)
        try:
            built = build(experiment, module, ranks)
        except InputError as error:
            problems += error.problems
            continue
        notices += built.notices
        summaries.append(f"{role}: {len(module.params)} keys, {ranks} rank{'s' * (ranks > 1)}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return summaries, notices
