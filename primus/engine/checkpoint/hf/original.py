"""The Hugging Face folder that weights once came from: where it is, whether it is of the model, and its other files."""

import logging
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus.engine.checkpoint.folder import RELEASE, format_of, iteration_folder, newest, read_tracker
from primus.engine.checkpoint.hf.likeness import differences
from primus.engine.checkpoint.hf.read import CONFIG, ORIGINAL, model_of, read_config
from primus.engine.config.model import ModelConfig
from primus.errors import InputError

__all__ = ["as_original", "checkpoint_folder", "copy_others", "known_original"]

log = logging.getLogger(__name__)

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")


def checkpoint_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint: given itself, or the newest under it."""
    if format_of(checkpoint):
        return checkpoint
    if read_tracker(checkpoint) == RELEASE and format_of(checkpoint / RELEASE):
        return checkpoint / RELEASE
    iteration, notice = newest(checkpoint)
    if iteration is None:
        raise InputError(f"{checkpoint} holds no complete checkpoint; give the folder that a run saves into, or one of its own")
    if notice:
        log.warning("%s", notice)
    return iteration_folder(checkpoint, iteration)


def known_original(checkpoint: Path, container: Mapping[str, Any]) -> Path | None:
    """Return the folder with `config.json` that the weights of a checkpoint came from; None if none is there.

    That is one beside the checkpoint, as an import leaves it, or what the run's `container` names: weights, or a tokenizer.
    """
    candidates = [checkpoint / ORIGINAL, checkpoint.parent / ORIGINAL]
    tokenizer, weights = container.get("tokenizer", {}).get("model"), container.get("checkpoint", {})
    named = (weights.get("hf_path"), weights.get("pretrained_checkpoint"), tokenizer)
    for path in (Path(name) for name in named if name):
        candidates += [path, path / ORIGINAL]
    return next((folder for folder in candidates if (folder / CONFIG).is_file()), None)


def as_original(original: Path, model: ModelConfig, dtype: str) -> tuple[str, dict[str, Any]]:
    """Return the family and the `config.json` of the original, but for the dtype; InputError if that is another model."""
    content, where = read_config(original), original / CONFIG
    family, theirs = model_of(content, str(where))
    own: dict[str, Any] = {"dtype" if "dtype" in content else "torch_dtype": dtype}
    if theirs.mtp.num_layers > model.mtp.num_layers:
        # The run did without them.
        theirs, own = replace(theirs, mtp=model.mtp), {**own, "num_nextn_predict_layers": model.mtp.num_layers}
    problems = [f"{path} is {ours} in the checkpoint and {its} in {where}" for path, ours, its in differences(model, theirs)]
    if problems:
        raise InputError([*problems, f"the weights are not of the model in {original}; --hf-path gives another folder"])
    return family, {**content, **own}


def copy_others(source: Path, target: Path, *, but: Collection[str] = ()) -> None:
    """Copy the files that are no weights: tokenizer, generation settings, licence; `config.json` if it is not there."""
    target.mkdir(exist_ok=True)
    for file in sorted(source.iterdir()):
        belongs = file.is_file() and not file.name.startswith(".") and not file.name.endswith(_WEIGHTS)
        if belongs and file.name not in but and not (target / file.name).exists():
            shutil.copyfile(file, target / file.name)
