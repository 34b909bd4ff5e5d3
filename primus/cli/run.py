"""From an experiment file to a started run: resolve, check, say what is surprising, hand over."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console

from primus.cli.doors import build, keys_of, only_module
from primus.cli.dry_run import show_plan
from primus.cli.rehearsal import show_rehearsal
from primus.cli.report import tell
from primus.cli.surroundings import replaced_checkpoints, with_checked_surroundings
from primus.cli.weights import with_weights
from primus.core.experiment import FILE_WORDS, load_experiment, nearest
from primus.core.launch import LaunchOptions, Place, become, find_place, start
from primus.core.launch.rehearse import rehearse
from primus.engine.config import ConfigContainer, serialize
from primus.engine.parallel.layout import Layout
from primus.errors import InputError

__all__ = ["Look", "run"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What to look at instead of starting."""

    dry_run: bool
    world_size: int | None = None
    """Ranks to plan for; None: those that would be started."""
    rank: int | None = None
    """The one to rehearse; None: 0 if there is a `world_size`, else none."""

    def check(self, options: LaunchOptions, env: Mapping[str, str]) -> None:
        """Refuse options that contradict one another; the rank waits for the size of the world."""
        asked = {"--world-size": self.world_size, "--rank": self.rank}
        given = [f"{name} {value}" for name, value in asked.items() if value is not None]
        if not given:
            return
        if not self.dry_run:
            raise InputError(f"{' and '.join(given)}: ranks that do not run are looked at with --dry-run; give that as well")
        if self.world_size is not None and "RANK" in env:
            raise InputError(
                f"--world-size {self.world_size} cannot be used here: RANK is set ({env['RANK']}), so a launcher has started "
                "this process as one rank. Leave the option out, or unset RANK."
            )
        if self.world_size is not None and options.given:
            others = ", ".join(options.given)
            raise InputError(f"--world-size {self.world_size} says how many ranks there are; leave out {others}")
        if self.world_size is not None and self.world_size < 1:
            raise InputError(f"--world-size {self.world_size} must be at least 1")

    def rehearsed(self, world_size: int) -> int | None:
        """Return the rank to rehearse, if there is one."""
        if self.rank is not None and not 0 <= self.rank < world_size:
            raise InputError(f"--rank {self.rank} is none of the run's ranks, 0 to {world_size - 1}")
        return 0 if self.rank is None and self.world_size is not None else self.rank


def run(role: str, file: Path, words: list[str], options: LaunchOptions, look: Look) -> None:
    """Start the run of an experiment's module, or print its plan; the only module is run whatever its role."""
    look.check(options, os.environ)
    place = find_place(options, os.environ)
    try:
        _run(role, file, words, place, look)
    except InputError as error:
        # Every rank that a launcher starts finds the same mistake; one on each machine tells it.
        if place.speaks:
            raise
        raise typer.Exit(error.exit_code) from error


def _run(role: str, file: Path, words: list[str], place: Place, look: Look) -> None:
    world_size = look.world_size or place.world_size
    rank = look.rehearsed(world_size)
    experiment = load_experiment(file, words, os.environ)
    module = only_module(experiment, role)
    _check_option_names(words, keys_of(str(module.framework.value)))
    named = build(experiment, module, world_size)
    built = with_weights(named, plans=look.dry_run)
    # On every rank: one that went on would wait for those that were refused.
    config = with_checked_surroundings(built, experiment, reports=place.rank == 0 and not place.node_rank)
    notices = [*place.notices, *built.notices]
    if place.rank == 0:
        tell(notices)
    if look.dry_run:
        if place.rank == 0:
            _show(config, world_size, rank, named.config.checkpoint.hf_path)
        return
    container = serialize.dump(built.config, built.sources)
    start(container, Path(config.run.folder), place, os.environ, become, notices=notices)


def _show(config: ConfigContainer, world_size: int, rank: int | None, hf_path: str | None) -> None:
    tell(replaced_checkpoints(config))
    show_plan(config, world_size, rank=rank, hf_path=hf_path)
    if rank is not None:
        _rehearse(config, rank, world_size)


def _rehearse(config: ConfigContainer, rank: int, world_size: int) -> None:
    with Console(stderr=True).status(f"building rank {rank} of {world_size} on the meta device"):
        record = rehearse(serialize.dump(config), rank=rank, world_size=world_size, env=os.environ)
    show_rehearsal(record, Layout.of(config.model.parallel, world_size))


def _check_option_names(words: list[str], keys: Collection[str]) -> None:
    """Refuse a misspelt launch option, which would otherwise pass as a key of the experiment."""
    options = [f"--{name.replace('_', '-')}" for name in (*LaunchOptions.__slots__, "config", *Look.__slots__)]
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
