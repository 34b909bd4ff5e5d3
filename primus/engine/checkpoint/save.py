"""`save_checkpoint` writes everything a run needs to go on, and publishes it only when all of it is durable.

Every rank calls it at the same iteration. The folder is made by the first rank, filled by all, then completed and renamed by
the first; a rank that fails (a full disk, say) fails all of them, and the previous checkpoint stays as it was.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus.engine.checkpoint import dist_format, folder, torch_format
from primus.engine.checkpoint.agree import on_first
from primus.engine.checkpoint.files import Checksums, Record, save_object
from primus.engine.checkpoint.local import save_local
from primus.engine.checkpoint.local_folder import prune, rank_folder
from primus.engine.checkpoint.progress import Progress
from primus.engine.checkpoint.rng import pack
from primus.engine.checkpoint.start import scratch_folder
from primus.engine.checkpoint.state import TrainState
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import RunError

__all__ = ["COMMON", "Contents", "rng_name", "save_checkpoint", "save_non_persistent", "saved_layout", "seal"]

log = logging.getLogger(__name__)

COMMON = "common.pt"
VERSION = 3.0
_BACKENDS = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
"""Content of `metadata.json`: Megatron-Core's reader accepts these entries and no others."""


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
    base: Mapping[str, Any] | None = None
    """What `model` adapts, where that is adapters: `path`, and `fingerprints` by dtype; None: these are all weights."""


def save_checkpoint(config: CheckpointConfig, contents: Contents, *, mesh: Mesh, progress: Progress | None = None) -> Path:
    """Write the checkpoint of `contents.state.iteration` under `config.save` and return its folder.

    `progress` is told of the save and of a deletion. RunError on every rank if the checkpoint cannot be written; the previous
    one stays as it was.
    """
    assert config.save is not None
    base, iteration = Path(config.save), contents.state.iteration
    previous = folder.read_tracker(base)
    final = _save_under(base, config, contents, mesh)
    _forget_later(base, iteration, config, mesh)
    if mesh.rank == 0:
        # The other ranks do not wait for a deletion.
        older = previous if isinstance(previous, int) else None
        deleted = folder.retain(base, newest_iteration=iteration, previous=older, interval=config.save_retain_interval)
        if deleted is not None:
            log.info("successfully deleted checkpoint from iteration %7d under %s", deleted, base)
        if progress is not None:
            _note(progress, contents, deleted)
    return final


def save_non_persistent(config: CheckpointConfig, contents: Contents, *, mesh: Mesh) -> Path:
    """Write a checkpoint that takes the place of the one of its kind before it, and return its folder; errors as above."""
    assert config.save is not None
    base, iteration = scratch_folder(config, Path(config.save)), contents.state.iteration
    if base is None:
        optimizer, rng = _wanted(config, contents)
        common = _common(config, contents, mesh)
        return save_local(config, {**contents.model, **optimizer}, common=common, rng=rng, mesh=mesh)
    final = _save_under(base, config, contents, mesh)
    if mesh.rank == 0:
        folder.forget(base, but=iteration)
    return final


def _save_under(base: Path, config: CheckpointConfig, contents: Contents, mesh: Mesh) -> Path:
    iteration = contents.state.iteration
    log.info("saving checkpoint at iteration %7d to %s in %s format", iteration, base, config.ckpt_format)
    temporary: Path | None = None
    try:
        temporary = on_first(mesh.world, lambda: folder.open_temporary(base, iteration))
        records = _write(temporary, config, contents, mesh)
        final = on_first(mesh.world, lambda: _complete(temporary, config, contents, records, mesh))
    except OSError as error:
        if temporary is not None and mesh.rank == 0:
            folder.discard(temporary)
        raise RunError(_failure(base, iteration, error)) from error
    log.info("successfully saved checkpoint from iteration %7d to %s", iteration, base)
    return final


def _forget_later(base: Path, iteration: int, config: CheckpointConfig, mesh: Mesh) -> None:
    """Remove non-persistent checkpoints of later iterations: this run was set back behind them, and would find them newer."""
    scratch, local = scratch_folder(config, base), config.non_persistent.local_dir
    if scratch is not None and mesh.rank == 0:
        folder.forget(scratch, after=iteration)
    if config.non_persistent.kind == "local" and local is not None:
        prune(rank_folder(folder.run_folder(Path(local), base), mesh.rank), after=iteration)


def seal(temporary: Path, records: list[Record], common: Mapping[str, Any]) -> None:
    """Add what a `torch_dist` checkpoint holds once: what all ranks have in common, checksums, and last the metadata."""
    records = [*records, save_object(temporary / COMMON, {"checkpoint_version": VERSION, **common})]
    Checksums.write(temporary, records)
    folder.write_durably(temporary / folder.METADATA, json.dumps(_BACKENDS).encode())


def saved_layout(mesh: Mesh) -> dict[str, Any]:
    """Return what random states depend on."""
    layout = mesh.layout
    return {
        "tensor": layout.tensor,
        "context": layout.context,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "device": mesh.device.type,
    }


def rng_name(mesh: Mesh, *, data_rank: int) -> str:
    """Return the name of the random states of a place on the grid."""
    place = mesh.coordinates
    return f"rng_state/tp{place.tp}_cp{place.cp}_pp{place.pp}_dp{data_rank}"


def _write(temporary: Path, config: CheckpointConfig, contents: Contents, mesh: Mesh) -> list[Record]:
    optimizer, rng = _wanted(config, contents)
    if config.ckpt_format == "torch":
        common = _common(config, contents, mesh)
        return torch_format.save_tensors(temporary, contents.model, optimizer, common=common, rng=rng, mesh=mesh)
    blobs = {} if rng is None else {rng_name(mesh, data_rank=mesh.coordinates.dp): rng}
    tensors = {**contents.model, **optimizer}
    return dist_format.save_tensors(temporary, tensors, blobs, mesh=mesh, spread=config.fully_parallel_save)


def _wanted(config: CheckpointConfig, contents: Contents) -> tuple[Mapping[str, Shards], bytes | None]:
    optimizer = {} if config.no_save_optim else contents.optimizer
    return optimizer, None if config.no_save_rng else pack(dict(contents.rng))


def _common(config: CheckpointConfig, contents: Contents, mesh: Mesh) -> dict[str, Any]:
    return {
        "checkpoint_version": VERSION,
        "iteration": contents.state.iteration,
        "state": contents.state.to_dict(),
        "container": dict(contents.container),
        "saved_layout": saved_layout(mesh),
        "optimizer_common": None if config.no_save_optim else dict(contents.optimizer_common),
        "has_rng": not config.no_save_rng,
        "base": None if contents.base is None else dict(contents.base),
    }


def _complete(temporary: Path, config: CheckpointConfig, contents: Contents, records: list[Record], mesh: Mesh) -> Path:
    """Add what is written once, then publish: checksums, metadata last, rename, tracker."""
    if config.ckpt_format == "torch_dist":
        seal(temporary, records, _common(config, contents, mesh))
    else:
        Checksums.write(temporary, records)
    return folder.publish(temporary.parent, contents.state.iteration, temporary)


def _note(progress: Progress, contents: Contents, deleted: int | None) -> None:
    """Tell `progress.txt`; the run does not depend on it."""
    state = contents.state
    tokens = state.consumed_train_samples * contents.container["model"]["seq_length"]
    try:
        progress.saved(iteration=state.iteration, flops=state.num_floating_point_operations_so_far, tokens=tokens)
        if deleted is not None:
            progress.deleted(deleted)
    except OSError as error:
        log.warning("progress.txt could not be written: %s", error)


def _failure(base: Path, iteration: int, error: OSError) -> str:
    where = error.filename or base
    whole = folder.complete_iterations(base)
    if iteration in whole:
        return (
            f"the checkpoint of iteration {iteration} is written, but {error.filename or base / folder.TRACKER} is not: "
            f"{error.strerror}; a resume goes on from iteration {folder.newest(base)[0]}"
        )
    left = f"the checkpoint of iteration {whole[-1]} is intact" if whole else "there is no earlier checkpoint"
    return f"the checkpoint of iteration {iteration} could not be written: {error.strerror} ({where}); {left}"
