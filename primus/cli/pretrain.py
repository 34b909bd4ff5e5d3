"""From an experiment file to a started run: resolve, check, say what is surprising, hand over."""

import os
from pathlib import Path

import typer

from primus.cli.doors import build, keys_of, only_module
from primus.cli.dry_run import show_plan
from primus.cli.report import tell
from primus.cli.surroundings import replaced_checkpoints, with_checked_surroundings
from primus.core.experiment import FILE_WORDS, load_experiment, nearest
from primus.core.launch import LaunchOptions, Place, become, find_place, start
from primus.engine.config import serialize
from primus.errors import InputError

__all__ = ["run_pretrain"]


def run_pretrain(file: Path, words: list[str], options: LaunchOptions, *, dry_run: bool) -> None:
    """Start the pretraining run of an experiment, or print its plan."""
    place = find_place(options, os.environ)
    try:
        _run(file, words, place, dry_run=dry_run)
    except InputError as error:
        # Every rank that a launcher starts finds the same mistake; one on each machine tells it.
        if place.speaks:
            raise
        raise typer.Exit(error.exit_code) from error


def _run(file: Path, words: list[str], place: Place, *, dry_run: bool) -> None:
    _check_option_names(words)
    experiment = load_experiment(file, words, os.environ)
    built = build(experiment, only_module(experiment, "pre_trainer"), place.world_size)
    # On every rank: one that went on would wait for those that were refused.
    config = with_checked_surroundings(built, experiment, reports=place.rank == 0 and not place.node_rank)
    notices = [*place.notices, *built.notices]
    if place.rank == 0:
        tell(notices)
    if dry_run:
        tell(replaced_checkpoints(config))
        show_plan(config, place.world_size)
        return
    container = serialize.dump(built.config, built.sources)
    start(container, Path(config.run.folder), place, os.environ, become, notices=notices)


def _check_option_names(words: list[str]) -> None:
    """Refuse a misspelt launch option, which would otherwise pass as a key of the experiment."""
    options = [f"--{name.replace('_', '-')}" for name in LaunchOptions.__slots__] + ["--config", "--dry-run"]
    keys = keys_of("megatron")
    problems = []
    for word in words:
        name, is_assignment, _ = word.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        if not (is_assignment or name.startswith("--")) or key in keys or key in FILE_WORDS:
            continue
        close = nearest(f"--{key.replace('_', '-')}", [*options, *(f"--{key}" for key in keys)], count=1)
        if close and close[0] in options:
            problems.append(f"{name} is no option of this command and no key. Did you mean {close[0]}?")
    if problems:
        raise InputError(problems)
