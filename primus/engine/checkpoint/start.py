"""`find_start`: what a run starts from, decided from the configuration and the folders alone. No torch.

Order: `auto_continue_train` from the newest complete checkpoint under `save`; then `load`; then `pretrained_checkpoint`;
else fresh. A source that the configuration names and that holds nothing is an error, never a silent fresh start.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from primus.engine.checkpoint.folder import RELEASE, complete_iterations, format_of, iteration_folder, newest, read_tracker
from primus.engine.config import CheckpointConfig
from primus.errors import InputError

__all__ = ["Start", "find_start", "start_problems"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A checkpoint, and what of it is wanted."""

    folder: Path
    """The `iter_` or `release` folder."""
    iteration: int
    """0 for a release."""
    weights_only: bool
    """Start at iteration 0 with fresh optimizer, schedule, counters and random states."""
    load_optim: bool
    load_rng: bool
    notices: tuple[str, ...]
    """What the user should know about the choice."""


def find_start(config: CheckpointConfig) -> Start | None:
    """Return where the run starts, None for a fresh one; InputError if a named source holds no checkpoint."""
    start = _choose(config)
    if start is None:
        for line in _fresh_start_notices(config):
            log.warning("%s", line)
    return start


def start_problems(config: CheckpointConfig) -> list[str]:
    """Return why a run with this configuration cannot start, [] if it can; for checks before anything starts."""
    try:
        _choose(config)
    except InputError as error:
        return list(error.problems)
    return []


def _fresh_start_notices(config: CheckpointConfig) -> list[str]:
    notices = []
    if config.load is not None:
        missing = _missing("load", Path(config.load))
        notices.append(f"{missing}; exit_on_missing_checkpoint is false: starting from fresh weights")
    if config.save is not None and (present := complete_iterations(Path(config.save))):
        notices.append(
            f"{config.save} already holds checkpoints of iterations {_listed(present)}; this run starts afresh and will "
            "replace those it reaches (load or auto_continue_train would go on from them)"
        )
    return notices


def _choose(config: CheckpointConfig) -> Start | None:
    if config.auto_continue_train and config.save is not None:
        resumed = _continue(config, Path(config.save))
        if resumed is not None:
            return resumed
    if config.load is not None:
        start = _start(config, Path(config.load), "load", weights_only=config.finetune)
        if start is not None:
            return start
        if config.pretrained_checkpoint is None:
            if config.exit_on_missing_checkpoint:
                missing = _missing("load", Path(config.load))
                raise InputError(f"{missing}, or set exit_on_missing_checkpoint: false to start from fresh weights")
            return None
    if config.pretrained_checkpoint is not None:
        base = Path(config.pretrained_checkpoint)
        start = _start(config, base, "pretrained_checkpoint", weights_only=True)
        if start is None:
            raise InputError(_missing("pretrained_checkpoint", base))
        return start
    return None


def _continue(config: CheckpointConfig, base: Path) -> Start | None:
    iteration, notice = newest(base)
    if iteration is None:
        return None
    changed = [
        f"auto_continue_train: {line}"
        for line, is_set in (
            (f"load {config.load} is laid aside for {base}", config.load not in (None, config.save)),
            (f"ckpt_step {config.ckpt_step} is laid aside", bool(config.ckpt_step)),
            ("finetune: true -> false", config.finetune),
            ("no_load_optim: true -> false", config.no_load_optim),
            ("no_load_rng: true -> false", config.no_load_rng),
        )
        if is_set
    ]
    line = f"auto_continue_train: going on from iteration {iteration} under {base}"
    return Start(
        folder=iteration_folder(base, iteration),
        iteration=iteration,
        weights_only=False,
        load_optim=True,
        load_rng=True,
        notices=(*([notice] if notice else []), line, *changed),
    )


def _start(config: CheckpointConfig, base: Path, key: str, *, weights_only: bool) -> Start | None:
    notice: str | None = None
    if not config.ckpt_step and read_tracker(base) == RELEASE and format_of(base / RELEASE):
        folder, iteration, weights_only = base / RELEASE, 0, True
    else:
        found = _iteration(base, config.ckpt_step, key)
        if found is None:
            return None
        iteration, notice = found
        folder = iteration_folder(base, iteration)
    return Start(
        folder=folder,
        iteration=iteration,
        weights_only=weights_only,
        load_optim=not (weights_only or config.no_load_optim),
        load_rng=not (weights_only or config.no_load_rng),
        notices=(notice,) if notice else (),
    )


def _iteration(base: Path, step: int | None, key: str) -> tuple[int, str | None] | None:
    whole = complete_iterations(base)
    if not whole and format_of(base):
        raise InputError(f"{key} is {base}, one checkpoint; give the folder that holds it, {base.parent}, and ckpt_step")
    if step and step not in whole:
        held = f"complete are: {_listed(whole)}" if whole else "there is no complete checkpoint"
        raise InputError(f"ckpt_step is {step}, and {key} {base} holds no complete checkpoint of that iteration; {held}")
    if step:
        return step, None
    iteration, notice = newest(base)
    return None if iteration is None else (iteration, notice)


def _missing(key: str, base: Path) -> str:
    state = "holds no complete checkpoint" if base.is_dir() else "does not exist"
    return f"{key}: {base} {state}; correct the path"


def _listed(iterations: list[int]) -> str:
    shown = ", ".join(map(str, iterations[-10:]))
    return shown if len(iterations) <= 10 else f"..., {shown}"
