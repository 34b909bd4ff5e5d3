"""Local checkpoints: each rank writes its own rectangles to its node's disk, and takes them from there or from a copy.

`fully_parallel`: a rectangle that several ranks hold is in the part of one of them, which gives it to the others when all is
restored. `atomic`: a part is all that its rank needs. Either belongs to one layout. `save_local` writes, `newest_start` decides
on all ranks together whether a local checkpoint is what the run goes on from; `local_source.py` reads.
"""

import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus.engine.checkpoint import local_folder
from primus.engine.checkpoint.agree import everywhere, on_first, scatter
from primus.engine.checkpoint.archive import alone
from primus.engine.checkpoint.dist_plan import assign, holdings
from primus.engine.checkpoint.files import Checksums, Record, save_object
from primus.engine.checkpoint.folder import run_folder
from primus.engine.checkpoint.local_folder import LocalCheckpoint, part_file, rank_folder
from primus.engine.checkpoint.replicas import exchange_parts, keepers
from primus.engine.checkpoint.start import Start, is_set_back, resumed_base, unfound
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards
from primus.errors import InputError, RunError

__all__ = ["newest_start", "save_local"]

log = logging.getLogger(__name__)


def save_local(
    config: CheckpointConfig,
    tensors: Mapping[str, Shards],
    *,
    common: Mapping[str, Any],
    rng: bytes | None,
    mesh: Mesh,
) -> Path:
    """Write this rank's part and copies of others', remove what is older, and return this rank's folder of the save.

    RunError on every rank if one cannot write; the previous save stays as it was.
    """
    scratch, iteration = config.non_persistent, int(common["iteration"])
    assert scratch.local_dir is not None
    assert config.save is not None
    own = rank_folder(run_folder(Path(scratch.local_dir), Path(config.save)), mesh.rank)
    log.info("saving local checkpoint at iteration %7d to %s", iteration, scratch.local_dir)
    stamp, opened = on_first(mesh.world, time.time_ns), list[Path]()
    try:
        everywhere(mesh.world, lambda: opened.append(local_folder.open_temporary(own, iteration, stamp)))
        (temporary,) = opened
        duty, is_whole = _duty(tensors, config, mesh), scratch.local_algo == "atomic"
        part = _part(tensors, duty, common=common, rng=rng, is_whole=is_whole)
        records = list[Record]()
        everywhere(mesh.world, lambda: records.append(save_object(temporary / part_file(mesh.rank), part)))
        ranks: tuple[int, ...] = (mesh.rank,)
        if scratch.replication_jump is not None:
            ranks = keepers(mesh.rank, jump=scratch.replication_jump, factor=scratch.replication_factor)
            everywhere(mesh.world, lambda: records.extend(exchange_parts(temporary, ranks, mesh)))
        described = LocalCheckpoint(_layout(mesh), ranks)
        everywhere(mesh.world, lambda: _describe(temporary, records, described))
        finals = list[Path]()
        everywhere(mesh.world, lambda: finals.append(local_folder.publish(temporary)))
    except OSError as error:
        for temporary in opened:
            shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(
            f"the local checkpoint of iteration {iteration} could not be written: {error.strerror} ({error.filename or own}); "
            "the one before it is intact"
        ) from error
    local_folder.prune(own, keep=finals[0].name)
    log.info("successfully saved local checkpoint from iteration %7d", iteration)
    return finals[0]


def newest_start(start: Start | None, config: CheckpointConfig, mesh: Mesh) -> Start | None:
    """Return where the run starts, given where it would without local checkpoints; every rank decides the same.

    A local checkpoint that is no older goes before. InputError if nothing is there and the configuration wants something.
    """
    base = resumed_base(config)
    if config.non_persistent.kind != "local" or base is None:
        return start
    assert config.non_persistent.local_dir is not None
    run = run_folder(Path(config.non_persistent.local_dir), base)
    name, notices = _newest_whole(run, mesh)
    floor = 0 if start is None or start.weights_only else start.iteration
    if name is not None and (local_folder.iteration_of(name) < floor or is_set_back(base)):
        why = "the tracker was set back" if is_set_back(base) else f"iteration {floor} is newer"
        notices.append(f"the local checkpoint {name} is not used: {why}")
    elif name is not None:
        return Start(
            folder=rank_folder(run, mesh.rank) / name,
            iteration=local_folder.iteration_of(name),
            weights_only=False,
            load_optim=config.auto_continue_train or not config.no_load_optim,
            load_rng=config.auto_continue_train or not config.no_load_rng,
            notices=(*notices, f"going on from the local checkpoint {name} under {run}"),
            is_local=True,
        )
    if start is not None:
        return replace(start, notices=(*start.notices, *notices))
    for line in notices:
        log.warning("%s", line)
    if (problem := unfound(config)) is not None:
        raise InputError(problem)
    return None


def _duty(tensors: Mapping[str, Shards], config: CheckpointConfig, mesh: Mesh) -> list[tuple[str, int]]:
    """Return the (tensor, number of its rectangle) that go into this rank's part."""
    if config.non_persistent.local_algo == "atomic":
        return [(name, number) for name, s in tensors.items() for number, c in enumerate(s.chunks) if c.data.numel()]
    held = everywhere(mesh.world, lambda: holdings(tensors))
    return scatter(assign(held, spread=True) if held else [], mesh.world)


def _part(
    tensors: Mapping[str, Shards],
    duty: list[tuple[str, int]],
    *,
    common: Mapping[str, Any],
    rng: bytes | None,
    is_whole: bool,
) -> dict[str, Any]:
    """Put a part together; `is_whole` says that its rank needs no other."""
    chunks = [(name, tensors[name].chunks[number]) for name, number in duty]
    return {
        "common": dict(common),
        "rng": rng,
        "shapes": {name: tuple(shards.global_shape) for name, shards in tensors.items()},
        "held": [(name, tuple(c.offsets), tuple(c.data.shape)) for name, s in tensors.items() for c in s.chunks],
        "items": [(name, tuple(c.offsets), tuple(c.data.shape)) for name, c in chunks],
        "data": [alone(c.data) for _, c in chunks],
        "is_whole": is_whole,
    }


def _describe(folder: Path, records: list[Record], checkpoint: LocalCheckpoint) -> None:
    Checksums.write(folder, records)
    local_folder.write_description(folder, checkpoint)


def _layout(mesh: Mesh) -> dict[str, Any]:
    """Return what a rank's number and rectangles depend on."""
    layout = mesh.layout
    return {
        "world_size": layout.world_size,
        "tensor": layout.tensor,
        "context": layout.context,
        "pipeline": layout.pipeline,
        "expert": layout.expert,
        "expert_tensor": mesh.etp.size,
        "order": list(layout.order),
    }


def _newest_whole(run: Path, mesh: Mesh) -> tuple[str | None, list[str]]:
    """Return the newest save of this layout of which some rank sees each part, and what is to be said of newer ones."""
    seen = local_folder.found(run)
    saves: dict[str, tuple[Mapping[str, Any], set[int]]] = {}
    for mine in all_gather_object({name: list(folders.values()) for name, folders in seen.items()}, mesh.world):
        for name, checkpoints in mine.items():
            layout, parts = saves.setdefault(name, (checkpoints[0].layout, set()))
            parts.update(part for checkpoint in checkpoints for part in checkpoint.parts)
    notices = list[str]()
    for name in sorted(saves, key=local_folder.stamp_of, reverse=True):
        layout, parts = saves[name]
        lost = sorted(set(range(mesh.world.size)) - parts)
        if layout != _layout(mesh):
            notices.append(f"the local checkpoint {name} belongs to another layout ({layout}) and is not used")
        elif lost:
            notices.append(f"the local checkpoint {name} is not used: no rank sees the parts of {', '.join(map(str, lost))}")
        else:
            return name, notices
    return None, notices
