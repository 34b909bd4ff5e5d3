"""`save_checkpoint` writes everything a run needs to go on, and publishes it only when all of it is durable.

Every rank calls it at the same iteration. The world meets three times: when the temporary folder exists, when all files
are written, and when the checkpoint is published.
"""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from primus.engine.checkpoint import dist_format, folder, torch_format
from primus.engine.checkpoint.checksum import file_checksum
from primus.engine.checkpoint.state import TrainState
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import RunError

__all__ = ["Contents", "save_checkpoint"]

log = logging.getLogger(__name__)

COMMON = "common.pt"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What this rank contributes to a checkpoint."""

    state: TrainState
    model: Mapping[str, Shards]
    optimizer: Mapping[str, Shards]
    optimizer_common: Mapping[str, Any]
    """Optimizer state that is one for all ranks: step count, schedule, loss scaler."""
    rng: Mapping[str, Any]
    container: Mapping[str, Any]
    """The run's configuration as plain data."""


def save_checkpoint(config: CheckpointConfig, contents: Contents, *, mesh: Mesh) -> Path:
    """Write the checkpoint of `contents.state.iteration` under `config.save` and return its folder.

    RunError if it cannot be written (a full disk, say); the previous checkpoint stays as it was.
    """
    assert config.save is not None
    base, iteration = Path(config.save), contents.state.iteration
    try:
        target = _prepare(base, iteration, mesh)
        checksums = _write(target, config, contents, mesh)
        rng = None if config.no_save_rng else dict(contents.rng)
        ranks = all_gather_object((checksums, rng), mesh.world)
        if mesh.rank == 0:
            _write_common(target, config, contents, mesh, [rng for _, rng in ranks])
            _finish(base, config, contents.state.iteration, {n: text for sums, _ in ranks for n, text in sums.items()})
    except OSError as error:
        _give_up(base, iteration, error)
    except CheckpointException as error:
        cause = next((f[0] for f in error.failures.values()), error)
        _give_up(base, iteration, cause)
    all_gather_object(None, mesh.world)
    return folder.iteration_folder(base, iteration)


def _prepare(base: Path, iteration: int, mesh: Mesh) -> Path:
    target = folder.temporary_folder(base, iteration)
    if mesh.rank == 0:
        base.mkdir(parents=True, exist_ok=True)
        folder.clean_leftovers(base)
        target.mkdir()
    all_gather_object(None, mesh.world)
    return target


def _write(target: Path, config: CheckpointConfig, contents: Contents, mesh: Mesh) -> dict[str, str]:
    optimizer = {} if config.no_save_optim else contents.optimizer
    if config.ckpt_format == "torch":
        return torch_format.save_tensors(target, contents.model, optimizer, mesh=mesh)
    tensors = {**contents.model, **optimizer}
    return dist_format.save_tensors(target, tensors, mesh=mesh, parallel=config.fully_parallel_save)


def _write_common(target: Path, config: CheckpointConfig, contents: Contents, mesh: Mesh, rng: list[Any]) -> None:
    common = {
        "state": contents.state.to_dict(),
        "container": dict(contents.container),
        "layout": {"world_size": mesh.world.size, "tensor": mesh.layout.tensor, "pipeline": mesh.layout.pipeline},
        "optimizer": None if config.no_save_optim else dict(contents.optimizer_common),
        "rng": None if config.no_save_rng else rng,
    }
    with (target / COMMON).open("wb") as stream:
        torch.save(common, stream)
        stream.flush()
        os.fsync(stream.fileno())


def _finish(base: Path, config: CheckpointConfig, iteration: int, checksums: dict[str, str]) -> None:
    """Complete the folder on rank 0: metadata last, rename, tracker, retention."""
    target, previous = folder.temporary_folder(base, iteration), folder.read_tracker(base)
    checksums[COMMON] = file_checksum(target / COMMON)
    metadata = {
        "sharded_backend": config.ckpt_format,
        "sharded_backend_version": 1,
        "common_backend": "torch",
        "common_backend_version": 1,
        "iteration": iteration,
        "checksums": checksums,
    }
    folder.write_durably(target / folder.METADATA, json.dumps(metadata, indent=1).encode())
    folder.publish(base, iteration)
    deleted = folder.retain(base, newest_iteration=iteration, previous=previous, interval=config.save_retain_interval)
    if deleted is not None:
        log.info("successfully deleted checkpoint from iteration %7d under %s", deleted, base)


def _give_up(base: Path, iteration: int, error: BaseException) -> None:
    shutil.rmtree(folder.temporary_folder(base, iteration), ignore_errors=True)
    raise RunError(
        f"the checkpoint of iteration {iteration} could not be written under {base}: {error}; earlier checkpoints are untouched"
    ) from error
