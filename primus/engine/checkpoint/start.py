"""`find_start`: what a run starts from, decided from the configuration and the folders alone. No torch.

Order: `auto_continue_train` from the newest complete checkpoint under `save`; then `load`; then `pretrained_checkpoint`; then
`hf_path`; else fresh. A run with adapters always takes one of the last two, its base, and resumes adapters from the others.
A source that the configuration names and that holds nothing is an error, never a silent fresh start. A run that resumes prefers
a global non-persistent checkpoint that is no older; whether it has a local one, `local.py` asks all ranks.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from primus.engine.checkpoint.folder import (
    RELEASE,
    complete_iterations,
    format_of,
    iteration_folder,
    newest,
    read_tracker,
    run_folder,
)
from primus.engine.checkpoint.hf.stored import files_of
from primus.engine.config import CheckpointConfig
from primus.errors import InputError

__all__ = ["Start", "find_base", "find_start", "is_set_back", "resumed_base", "scratch_folder", "start_problems", "unfound"]

log = logging.getLogger(__name__)

_CONFIG = "config.json"


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
    is_local: bool = False
    """Each rank's own part, in a folder on its node."""
    is_hugging_face: bool = False
    """A folder of `config.json` and safetensors."""


def find_start(config: CheckpointConfig, *, adapters: bool = False) -> Start | None:
    """Return where the run starts, None for a fresh one; InputError if a named source holds no checkpoint.

    With `adapters`: where these start, beside a base.
    """
    start = _resumed(config, has_base=adapters)
    if start is None and not adapters:
        start = find_base(config)
    if start is None:
        for line in _fresh_start_notices(config):
            log.warning("%s", line)
    return start


def find_base(config: CheckpointConfig) -> Start | None:
    """Return the weights that a run begins with: `pretrained_checkpoint`, or `hf_path`; None if neither is named.

    `pretrained_checkpoint` may be a folder of checkpoints, one of them, or a Hugging Face folder. InputError as above.
    """
    if config.pretrained_checkpoint is None:
        return None if config.hf_path is None else _hugging_face("hf_path", Path(config.hf_path))
    base = Path(config.pretrained_checkpoint)
    if format_of(base):
        return _weights(base)
    if (base / _CONFIG).is_file() and not complete_iterations(base) and not format_of(base / RELEASE):
        return _hugging_face("pretrained_checkpoint", base)
    start = _start(config, base, "pretrained_checkpoint", weights_only=True)
    if start is None:
        raise InputError(_missing("pretrained_checkpoint", base))
    return start


def start_problems(config: CheckpointConfig, *, adapters: bool = False) -> list[str]:
    """Return why a run with this configuration cannot start, [] if it can; for checks before anything starts."""
    problems: list[str] = []
    for look in (lambda: _resumed(config, has_base=adapters), lambda: find_base(config)):
        try:
            found = look()
        except InputError as error:
            problems += error.problems
            continue
        if found is not None and not adapters:
            break
    return problems


def resumed_base(config: CheckpointConfig) -> Path | None:
    """Return the folder of the run that goes on; None for one that begins, or that is told where to begin."""
    if config.auto_continue_train and config.save is not None:
        return Path(config.save)
    return None if config.load is None or config.finetune or config.ckpt_step else Path(config.load)


def scratch_folder(config: CheckpointConfig, base: Path) -> Path | None:
    """Return where the global non-persistent checkpoints of the run under `base` lie; None without such."""
    if config.non_persistent.kind != "global":
        return None
    shared = config.non_persistent.global_dir
    return base / "non_persistent" if shared is None else run_folder(Path(shared), base)


def is_set_back(base: Path) -> bool:
    """Tell whether the tracker names an older checkpoint than the newest: someone wants the later ones forgotten."""
    named, whole = read_tracker(base), complete_iterations(base)
    return named in whole and named != whole[-1]


def unfound(config: CheckpointConfig, *, has_base: bool = False) -> str | None:
    """Return what is wrong when `load` holds no checkpoint, None if the run may begin without it."""
    begins = (config.pretrained_checkpoint or config.hf_path) is not None and not has_base
    if config.load is None or begins or not config.exit_on_missing_checkpoint:
        return None
    missing = _missing("load", Path(config.load))
    return f"{missing}, or set exit_on_missing_checkpoint: false to start from fresh weights"


def _fresh_start_notices(config: CheckpointConfig) -> list[str]:
    notices = []
    if config.load is not None and unfound(config) is None:
        missing = _missing("load", Path(config.load))
        notices.append(f"{missing}; exit_on_missing_checkpoint is false: starting from fresh weights")
    if config.save is not None and (present := complete_iterations(Path(config.save))):
        notices.append(
            f"{config.save} already holds checkpoints of iterations {_listed(present)}; this run starts afresh and will "
            "replace those it reaches (load or auto_continue_train would go on from them)"
        )
    return notices


def _resumed(config: CheckpointConfig, *, has_base: bool) -> Start | None:
    if config.auto_continue_train and config.save is not None:
        resumed = _continue(config, Path(config.save))
        if resumed is not None:
            return resumed
    if config.load is None:
        return None
    start = _start(config, Path(config.load), "load", weights_only=config.finetune)
    if start is not None:
        return start
    problem = unfound(config, has_base=has_base)
    # A local checkpoint may lie on any rank's node.
    if problem is not None and (config.non_persistent.kind != "local" or resumed_base(config) is None):
        raise InputError(problem)
    return None


def _hugging_face(key: str, folder: Path) -> Start:
    if not (folder / _CONFIG).is_file():
        state = f"has no {_CONFIG}" if folder.is_dir() else "does not exist"
        raise InputError(f"{key}: {folder} {state}; give the folder of a Hugging Face model")
    files_of(folder)
    return replace(_weights(folder), is_hugging_face=True)


def _weights(folder: Path) -> Start:
    return Start(folder=folder, iteration=0, weights_only=True, load_optim=False, load_rng=False, notices=())


def _continue(config: CheckpointConfig, base: Path) -> Start | None:
    found = _with_scratch(config, base, newest(base))
    if found is None:
        return None
    folder, iteration, notices = found
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
    line = f"auto_continue_train: going on from iteration {iteration} under {folder.parent}"
    return Start(
        folder=folder,
        iteration=iteration,
        weights_only=False,
        load_optim=True,
        load_rng=True,
        notices=(*notices, line, *changed),
    )


def _with_scratch(
    config: CheckpointConfig, base: Path, persistent: tuple[int | None, str | None]
) -> tuple[Path, int, list[str]] | None:
    """Return folder, iteration and notices of what a run resumes: a non-persistent checkpoint goes before no newer one."""
    iteration, notice = persistent
    notices = [notice] if notice else []
    scratch = scratch_folder(config, base)
    recent, its_notice = newest(scratch) if scratch is not None else (None, None)
    if scratch is None or recent is None:
        return None if iteration is None else (iteration_folder(base, iteration), iteration, notices)
    if iteration is None or (recent >= iteration and not is_set_back(base)):
        notices += [its_notice] if its_notice else []
        return iteration_folder(scratch, recent), recent, [*notices, f"iteration {recent} is a non-persistent checkpoint"]
    why = "is older" if recent < iteration else "is not used, since the tracker was set back"
    notices.append(f"the non-persistent checkpoint of iteration {recent} under {scratch} {why}")
    return iteration_folder(base, iteration), iteration, notices


def _start(config: CheckpointConfig, base: Path, key: str, *, weights_only: bool) -> Start | None:
    notices: list[str] = []
    if not config.ckpt_step and read_tracker(base) == RELEASE and format_of(base / RELEASE):
        folder, iteration, weights_only = base / RELEASE, 0, True
    else:
        found = _iteration(base, config.ckpt_step, key)
        if key == "load" and base == resumed_base(config):
            resumed = _with_scratch(config, base, found or (None, None))
            if resumed is None:
                return None
            folder, iteration, notices = resumed
        elif found is None:
            return None
        else:
            iteration, notices = found[0], [found[1]] if found[1] else []
            folder = iteration_folder(base, iteration)
    return Start(
        folder=folder,
        iteration=iteration,
        weights_only=weights_only,
        load_optim=not (weights_only or config.no_load_optim),
        load_rng=not (weights_only or config.no_load_rng),
        notices=tuple(notices),
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
