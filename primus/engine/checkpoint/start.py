"""`find_start`: what a run starts from, decided from the configuration and the folders alone. No torch.

Order: `auto_continue_train` from the newest whole checkpoint under `save`; then `load`; then `pretrained_checkpoint`;
else fresh. A source that the configuration names and that holds nothing is an error, never a silent fresh start.
"""

from dataclasses import dataclass
from pathlib import Path

from primus.engine.checkpoint.folder import complete_iterations, iteration_folder, newest
from primus.engine.config import CheckpointConfig
from primus.errors import InputError

__all__ = ["Start", "find_start"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A checkpoint, and what of it is wanted."""

    folder: Path
    """The `iter_` folder."""
    iteration: int
    weights_only: bool
    """Start at iteration 0 with fresh optimizer, schedule, counters and random states."""
    load_optim: bool
    load_rng: bool
    notices: tuple[str, ...]
    """What the user should know about the choice."""


def find_start(config: CheckpointConfig) -> Start | None:
    """Return where the run starts, None for a fresh one; InputError if a named source holds no checkpoint."""
    if config.auto_continue_train and config.save is not None:
        resumed = _continue(config, Path(config.save))
        if resumed is not None:
            return resumed
    if config.load is not None:
        found = _found(Path(config.load), config.ckpt_step, "load")
        if found is not None:
            return _start(config, *found, weights_only=config.finetune)
        if config.pretrained_checkpoint is None:
            _refuse_missing(config)
            return None
    if config.pretrained_checkpoint is not None:
        found = _found(Path(config.pretrained_checkpoint), config.ckpt_step, "pretrained_checkpoint")
        if found is None:
            raise InputError(_missing("pretrained_checkpoint", config.pretrained_checkpoint))
        return _start(config, *found, weights_only=True)
    return None


def _continue(config: CheckpointConfig, base: Path) -> Start | None:
    iteration, notice = newest(base)
    if iteration is None:
        return None
    changed = [
        f"{name} is laid aside"
        for name, is_set in (
            (f"load {config.load}", config.load is not None),
            ("finetune", config.finetune),
            ("no_load_optim", config.no_load_optim),
            ("no_load_rng", config.no_load_rng),
        )
        if is_set
    ]
    line = f"auto_continue_train: going on from iteration {iteration} under {base}"
    notices = [*([notice] if notice else []), "; ".join([line, *changed])]
    return Start(
        folder=iteration_folder(base, iteration),
        iteration=iteration,
        weights_only=False,
        load_optim=True,
        load_rng=True,
        notices=tuple(notices),
    )


def _start(config: CheckpointConfig, base: Path, iteration: int, notice: str | None, *, weights_only: bool) -> Start:
    return Start(
        folder=iteration_folder(base, iteration),
        iteration=iteration,
        weights_only=weights_only,
        load_optim=not (weights_only or config.no_load_optim),
        load_rng=not (weights_only or config.no_load_rng),
        notices=(notice,) if notice else (),
    )


def _found(base: Path, step: int | None, key: str) -> tuple[Path, int, str | None] | None:
    if base.name.startswith("iter_") and complete_iterations(base.parent) and not complete_iterations(base):
        raise InputError(f"{key} is {base}, one checkpoint; give the folder that holds it, {base.parent}, and ckpt_step")
    if not step:
        iteration, notice = newest(base)
        return None if iteration is None else (base, iteration, notice)
    whole = complete_iterations(base)
    if step not in whole:
        available = ", ".join(map(str, whole)) or "none"
        raise InputError(f"ckpt_step {step} is not among the whole checkpoints under {key} {base}: {available}")
    return base, step, None


def _refuse_missing(config: CheckpointConfig) -> None:
    if config.exit_on_missing_checkpoint:
        raise InputError(_missing("load", str(config.load)))


def _missing(key: str, folder: str) -> str:
    state = "holds no whole checkpoint" if Path(folder).is_dir() else "does not exist"
    way_out = ", or set exit_on_missing_checkpoint: false to start from fresh weights" if key == "load" else ""
    return f"{key} {folder} {state}; correct the path{way_out}"
