"""`unfit` holds the folder of weights that a run starts from against its model, from text alone. No torch."""

from pathlib import Path

from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.read import CONFIG, model_in
from primus.engine.checkpoint.hf.stored import damages, holds_layer
from primus.engine.checkpoint.start import find_base, find_start
from primus.engine.config import ConfigContainer
from primus.errors import InputError

__all__ = ["unfit"]


def unfit(config: ConfigContainer) -> list[str]:
    """Return every field in which a Hugging Face folder to start from is another model than the run's; [] if none is read.

    What its files lack is told as far as their headers show it; each tensor is looked for where weights are read.
    Experts that are made of its dense layers are held against it where they are made.
    """
    try:
        start = None if config.peft is not None else find_start(config.checkpoint, adapters=True)
        base = find_base(config.checkpoint) if start is None else None
    except InputError:
        return []  # `start_problems` tells it
    if base is None or not base.is_hugging_face or config.model.moe.use_upcycling:
        return []
    try:
        _, theirs = model_in(base.folder)
    except InputError as error:
        return list(error.problems)
    file, found = base.folder / CONFIG, differences(config.model, theirs)
    problems = [f"model.{path} is {ours} in this run, and {its} in {file}" for path, ours, its in found]
    if problems:
        key = "hf_path" if config.checkpoint.pretrained_checkpoint is None else "pretrained_checkpoint"
        problems.append(f"the weights in {base.folder} are of another model: correct {key}, or take the model of its {CONFIG}")
    return problems or [*damages(base.folder)] or _too_few_layers(base.folder, theirs.num_layers)


def _too_few_layers(folder: Path, count: int) -> list[str]:
    if holds_layer(folder, count - 1):
        return []
    return [f"{folder / CONFIG} says {count} layers, and the files hold no tensor of layer {count - 1}: fetch the folder again"]
