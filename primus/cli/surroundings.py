"""What surrounds a run, looked at before it starts: data, tokenizer and checkpoint that it reads, folders that it writes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus.core.experiment import Experiment
from primus.engine.checkpoint.folder import complete_iterations
from primus.engine.checkpoint.hf.fit import unfit
from primus.engine.checkpoint.start import start_problems
from primus.engine.config import ConfigContainer
from primus.engine.data.preflight import check_data
from primus.errors import InputError
from primus.writable import why_unwritable

if TYPE_CHECKING:
    from primus.backends.megatron.argument_builder import Built

__all__ = ["replaced_checkpoints", "with_checked_surroundings"]


def with_checked_surroundings(built: "Built", experiment: Experiment, *, reports: bool) -> ConfigContainer:
    """Return the container with its vocabulary size; InputError lists everything that this rank would stumble over.

    All ranks read, save and keep a log; the one that `reports` writes the curves too, whose folders others need not have.
    """
    config = built.config
    problems, vocab_size = check_data(config)
    problems = [*problems, *start_problems(config.checkpoint, adapters=config.peft is not None), *unfit(config)]
    problems = [*(_traced(problem, built.origins) for problem in problems), *_unwritable(built, experiment, reports=reports)]
    if problems:
        raise InputError(problems)
    return replace(config, model=replace(config.model, vocab_size=config.model.vocab_size or vocab_size))


def replaced_checkpoints(config: ConfigContainer) -> Iterator[str]:
    """Say which checkpoints a run that does not go on from them writes over."""
    save = config.checkpoint
    if save.save is None or save.auto_continue_train or (save.load == save.save and not save.finetune):
        return
    held = complete_iterations(Path(save.save))
    if held:
        listed = ", ".join(map(str, held[-10:]))
        yield (
            f"{save.save} already holds checkpoints of iterations {listed}: this run counts from 0 and replaces those it "
            "reaches; auto_continue_train: true would go on from them."
        )


def _traced(problem: str, origins: dict[str, str]) -> str:
    """Add where the path in a problem was named; the longest is the most particular."""
    named = max((path for path in origins if path in problem), key=len, default=None)
    return problem if named is None else f"{problem} ({origins[named]})"


def _unwritable(built: "Built", experiment: Experiment, *, reports: bool) -> Iterator[str]:
    config = built.config
    run_folder = Path(config.run.folder)
    refusal = why_unwritable(run_folder)
    if refusal:
        workspace = experiment.workspace
        yield f"workspace {workspace.value} ({workspace.source}) cannot be written: {refusal}; choose another one"
    scratch = config.checkpoint.non_persistent
    outputs = {
        "save": config.checkpoint.save,
        "non_persistent_global_ckpt_dir": scratch.global_dir if scratch.kind == "global" else None,
        "non_persistent_local_ckpt_dir": scratch.local_dir if scratch.kind == "local" else None,
    }
    if reports:
        outputs |= {"tensorboard_dir": config.logger.tensorboard_dir, "wandb_save_dir": config.logger.wandb_save_dir}
    for key, folder in outputs.items():
        # What lies in the run folder shares its fate.
        if folder is None or (refusal and Path(folder).is_relative_to(run_folder)):
            continue
        reason = why_unwritable(Path(folder))
        if reason:
            source = built.origins.get(folder, "default").removeprefix(f"{key}, ")
            yield f"{key} {folder} ({source}) cannot be written: {reason}; choose another folder"
