"""`load_checkpoint` restores what a `Start` asks for and reports, line by line, what was restored and what was not.

Before a weight is touched the files are verified, and the names and shapes on disk are held against those wanted.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from primus.engine.checkpoint import dist_format, torch_format
from primus.engine.checkpoint.checksum import verify_files
from primus.engine.checkpoint.folder import read_metadata
from primus.engine.checkpoint.save import COMMON
from primus.engine.checkpoint.start import Start
from primus.engine.checkpoint.state import TrainState
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError

__all__ = ["Loaded", "load_checkpoint"]

log = logging.getLogger(__name__)

_SAME = (
    ("attention", "num_attention_heads"),
    ("attention", "num_query_groups"),
    ("attention", "kv_channels"),
    ("activation",),
    ("normalization",),
    ("position", "type"),
    ("tie_embeddings",),
)
"""Fields of the model that change its function without changing a shape."""


@dataclass(slots=True)
class Loaded:
    """What came out of a checkpoint."""

    state: TrainState
    optimizer_common: Mapping[str, Any] | None
    """None: the optimizer is fresh."""
    rng: Mapping[str, Any] | None
    """This rank's random states; None: they are fresh."""
    main_params: bool = False
    """fp32 main parameters were restored without the rest of the optimizer."""
    report: list[str] = field(default_factory=list)


def load_checkpoint(
    start: Start,
    config: CheckpointConfig,
    *,
    model: Mapping[str, Shards],
    optimizer: Mapping[str, Shards],
    container: Mapping[str, Any],
    mesh: Mesh,
) -> Loaded:
    """Fill `model` and, if it is wanted and there, `optimizer` in place. InputError lists everything that does not fit."""
    verify_files(start.folder, read_metadata(start.folder).get("checksums", {}), mesh.world)
    _check_format(start.folder, config)
    common = torch.load(start.folder / COMMON, map_location="cpu", weights_only=False)
    if not start.weights_only:
        _check_architecture(common["container"]["model"], container["model"], start.folder)
    loaded = Loaded(TrainState(), None, None)
    if not start.weights_only:
        loaded.state = TrainState.from_dict(common["state"])
    wanted = _wanted_optimizer(start, config, common, optimizer, loaded)
    _load_tensors(start.folder, config, model, wanted, mesh)
    if start.load_optim and common["optimizer"] is not None:
        loaded.optimizer_common = common["optimizer"]
    _take_rng(start, common, mesh, loaded)
    _report(start, common, loaded)
    return loaded


def _check_format(folder: Path, config: CheckpointConfig) -> None:
    found = "torch" if torch_format.is_torch_format(folder) else "torch_dist"
    if found != config.ckpt_format and not config.auto_detect_ckpt_format:
        raise InputError(
            f"{folder} is of ckpt_format {found}, the run says ckpt_format {config.ckpt_format}; set ckpt_format: {found}, "
            "or auto_detect_ckpt_format: true to read either"
        )


def _check_architecture(saved: Mapping[str, Any], ours: Mapping[str, Any], folder: Path) -> None:
    problems = []
    for path in _SAME:
        before, now = saved, ours
        for name in path:
            before, now = before.get(name), now.get(name)  # type: ignore[assignment]
        if before != now:
            problems.append(
                f"{folder} was saved with {path[-1]} {before}, the run says {now}; they must agree, or set finetune: true"
            )
    if problems:
        raise InputError(problems)


def _wanted_optimizer(
    start: Start, config: CheckpointConfig, common: Mapping[str, Any], optimizer: Mapping[str, Shards], loaded: Loaded
) -> Mapping[str, Shards]:
    if start.load_optim and common["optimizer"] is not None:
        return optimizer
    if config.load_main_params_from_ckpt and common["optimizer"] is not None:
        main = {name: shards for name, shards in optimizer.items() if name.startswith("optimizer.state.main_param.")}
        loaded.main_params = bool(main)
        return main
    return {}


def _load_tensors(
    folder: Path, config: CheckpointConfig, model: Mapping[str, Shards], optimizer: Mapping[str, Shards], mesh: Mesh
) -> None:
    old = torch_format.is_torch_format(folder)
    stored = torch_format.stored_shapes(folder, model, mesh=mesh) if old else dist_format.stored_shapes(folder)
    dropped = _reconcile(folder, config, stored, {**model, **optimizer}, with_optimizer=bool(optimizer))
    model, optimizer = ({n: s for n, s in side.items() if n not in dropped} for side in (model, optimizer))
    if old:
        torch_format.load_tensors(folder, model, optimizer, mesh=mesh)
    else:
        dist_format.load_tensors(folder, {**model, **optimizer}, mesh=mesh)


def _reconcile(
    folder: Path,
    config: CheckpointConfig,
    stored: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, Shards],
    *,
    with_optimizer: bool,
) -> set[str]:
    """Hold names and shapes against each other as `dist_ckpt_strictness` says; return the names that cannot be loaded."""
    unlike = [
        f"{name} has shape {list(stored[name])} in {folder} and {list(s.global_shape)} in the run"
        for name, s in wanted.items()
        if name in stored and stored[name] != tuple(s.global_shape)
    ]
    if unlike:
        raise InputError(unlike)
    unexpected = [name for name in wanted if name not in stored]
    left = [name for name in stored if name not in wanted and (with_optimizer or not name.startswith("optimizer."))]
    strictness = config.strictness
    lines = [f"not in {folder}: {', '.join(unexpected)}"] if unexpected else []
    if strictness.endswith("_all") and strictness != "ignore_all" and left:
        lines.append(f"in {folder} but not in the run: {', '.join(left)}")
    if lines and strictness in ("assume_ok_unexpected", "raise_unexpected", "raise_all"):
        raise InputError([*lines, f"dist_ckpt_strictness is {strictness}; log_unexpected goes on with what is there"])
    if strictness != "ignore_all":
        for line in lines:
            log.warning("%s", line)
    return set(unexpected)


def _take_rng(start: Start, common: Mapping[str, Any], mesh: Mesh, loaded: Loaded) -> None:
    if not start.load_rng or common["rng"] is None:
        return
    layout = {"world_size": mesh.world.size, "tensor": mesh.layout.tensor, "pipeline": mesh.layout.pipeline}
    if common["layout"] == layout:
        loaded.rng = common["rng"][mesh.rank]
    else:
        loaded.report.append(f"random states were saved by another layout ({common['layout']}) and are fresh")


def _report(start: Start, common: Mapping[str, Any], loaded: Loaded) -> None:
    parts = {
        "iteration and counters": not start.weights_only,
        "weights": True,
        "optimizer and schedule": loaded.optimizer_common is not None,
        "random states": loaded.rng is not None,
    }
    restored = ", ".join(name for name, done in parts.items() if done)
    fresh = ", ".join(name for name, done in parts.items() if not done)
    loaded.report.insert(0, f"loaded {start.folder} of iteration {common['state']['iteration']}: {restored}")
    if fresh:
        loaded.report.insert(1, f"NOT restored, fresh instead: {fresh}")
