"""`primus config validate`: all checks that a start would make, on any number of files."""

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from primus.cli.doors import build, keys_of
from primus.cli.report import tell, tell_error
from primus.core.experiment import Experiment, Module, load_experiment
from primus.core.keys import check_values
from primus.errors import EXIT_INPUT, ConfigError, InputError

__all__ = ["validate"]

_DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Experiment YAMLs.", show_default=False)],
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Ranks of the run.", show_default="WORLD_SIZE, or the fewest that fit")
    ] = None,
) -> None:
    """Check experiments as a start would, without starting anything."""
    asked = world_size or int(os.environ.get("WORLD_SIZE", "0")) or None
    results = [_is_valid(file, asked) for file in files]
    if not all(results):
        raise typer.Exit(EXIT_INPUT)


def _is_valid(file: Path, asked: int | None) -> bool:
    try:
        experiment = load_experiment(file, (), os.environ)
        summaries = _checked_modules(experiment, asked)
    except InputError as error:
        typer.echo(f"{file}: wrong")
        tell_error(error)
        return False
    typer.echo(f"{file}: ok ({'; '.join(summaries)})")
    return True


def _checked_modules(experiment: Experiment, asked: int | None) -> list[str]:
    """Return a line about each module; ConfigError with the problems of all of them."""
    problems: list[str] = []
    summaries = []
    for role, module in experiment.modules.items():
        ranks = asked or _fewest_ranks(module)
        try:
            built = build(experiment, module, ranks)
        except InputError as error:
            problems += error.problems
            continue
        tell(built.notices)
        summaries.append(f"{role}: {len(module.params)} parameters, {ranks} rank{'s' * (ranks > 1)}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return summaries


def _fewest_ranks(module: Module) -> int:
    """Return the ranks of one model replica; wrong degrees count as 1 and are reported by the build."""
    typed = check_values(keys_of(str(module.framework.value)), module.params).typed
    return math.prod(max(1, typed[key].value) for key in _DEGREES if key in typed)
