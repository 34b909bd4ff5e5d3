"""Checkpoint folders on disk: which are complete, how one is published, which are kept. No torch.

A base folder holds `iter_NNNNNNN/` folders (or `release/`) and `latest_checkpointed_iteration.txt`. A checkpoint is written
under a hidden name and renamed when all of it is durable; the tracker moves last. Folders leave by a rename, too. So at any
moment every `iter_` folder is whole, and killing a save leaves the previous checkpoint as it was.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path
from typing import Literal

from primus.errors import InputError

__all__ = [
    "CHECKSUMS",
    "METADATA",
    "RELEASE",
    "TRACKER",
    "complete_iterations",
    "discard",
    "forget",
    "format_of",
    "iteration_folder",
    "newest",
    "open_temporary",
    "publish",
    "read_tracker",
    "retain",
    "run_folder",
    "sync_folder",
    "write_durably",
]

log = logging.getLogger(__name__)

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = "metadata.json"
CHECKSUMS = "checksums.json"
RELEASE = "release"
_FOLDER = re.compile(r"iter_(\d{7,})")
_HIDDEN = re.compile(r"\.iter_(\d{7,})\.(tmp|replaced|removed)-.*")


def run_folder(directory: Path, base: Path) -> Path:
    """Return the part of a directory of the run that saves into `base`: runs that share it leave one another's alone.

    It is named by the way from one to the other, so the two may be moved together.
    """
    name = os.path.relpath(base, directory)
    return directory / f"run_{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def iteration_folder(base: Path, iteration: int) -> Path:
    """Return where an iteration's checkpoint lies; if a killed save had only moved it aside, there."""
    folder = base / f"iter_{iteration:07d}"
    aside = _aside(base).get(iteration)
    return aside if aside is not None and not folder.exists() else folder


def complete_iterations(base: Path) -> list[int]:
    """Return the iterations of all complete checkpoints, ascending; other folders do not count."""
    if not base.is_dir():
        return []
    try:
        children = list(base.iterdir())
    except OSError as error:
        raise InputError(f"the checkpoint folder {base} cannot be read: {error.strerror}") from error
    matches = ((_FOLDER.fullmatch(child.name), child) for child in children)
    whole = {int(match[1]) for match, child in matches if match and format_of(child)}
    return sorted(whole | _aside(base).keys())


def format_of(folder: Path) -> Literal["torch_dist", "torch"] | None:
    """Return the format of a complete checkpoint, by what every writer of it leaves last; None for any other folder."""
    try:
        metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "torch" if any(folder.glob("mp_rank_*/model_optim_rng.pt")) else None
    known = isinstance(metadata, dict) and metadata.get("sharded_backend") == "torch_dist"
    return "torch_dist" if known and (folder / ".metadata").is_file() else None


def read_tracker(base: Path) -> int | Literal["release"] | None:
    """Return what the tracker names; None without a readable one."""
    try:
        text = (base / TRACKER).read_text(encoding="ascii").strip()
        return RELEASE if text == RELEASE else int(text)  # type: ignore[return-value]
    except (OSError, ValueError):
        return None


def newest(base: Path) -> tuple[int | None, str | None]:
    """Return the iteration to go on from and a notice if it is not what the tracker says; (None, None) without checkpoint.

    The tracker is obeyed: a user may have set it back. One that is lost, or that names a folder that is not complete, does
    not lose the run: the newest complete checkpoint counts.
    """
    named, whole = read_tracker(base), complete_iterations(base)
    if not whole:
        return None, None
    if named in whole:
        later = f"{base / TRACKER} names iteration {named}; the complete iteration {whole[-1]} is not used"
        return int(named), later if whole[-1] > int(named) else None
    problem = "is missing or unreadable" if named is None else f"names {named}, which is not a complete checkpoint"
    return whole[-1], f"{base / TRACKER} {problem}; going on from the newest complete checkpoint, iteration {whole[-1]}"


def open_temporary(base: Path, iteration: int) -> Path:
    """Make the folder to write into, and remove what killed saves left behind."""
    base.mkdir(parents=True, exist_ok=True)
    _clean_leftovers(base)
    temporary = base / _hidden(iteration, "tmp")
    temporary.mkdir()
    return temporary


def publish(base: Path, iteration: int, temporary: Path) -> Path:
    """Make a finished, synced temporary folder the iteration's checkpoint, then move the tracker to it."""
    final, aside = base / f"iter_{iteration:07d}", base / _hidden(iteration, "replaced")
    sync_folder(temporary)
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(base)
    write_durably(base / TRACKER, str(iteration).encode())
    shutil.rmtree(aside, ignore_errors=True)
    return final


def discard(temporary: Path) -> None:
    """Remove a temporary folder whose save failed."""
    shutil.rmtree(temporary, ignore_errors=True)


def retain(base: Path, *, newest_iteration: int, previous: int | None, interval: int | None) -> int | None:
    """Delete the previous checkpoint unless it is at a multiple of `interval`; return the iteration that was deleted.

    Only a complete checkpoint older than the newest goes; a link is left alone.
    """
    if interval is None or previous is None or not 0 < previous < newest_iteration or previous % interval == 0:
        return None
    return previous if _remove(base, previous) else None


def forget(base: Path, *, but: int | None = None, after: int = -1) -> None:
    """Delete the complete checkpoints of iterations above `after`, other than `but`."""
    for iteration in complete_iterations(base):
        if iteration > after and iteration != but:
            _remove(base, iteration)


def write_durably(file: Path, data: bytes) -> None:
    """Write a small file so that it is either the old one or the new one, whatever happens."""
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(file)) from error
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(base: Path, iteration: int) -> bool:
    """Delete a complete checkpoint and tell whether it is gone; a link is left alone."""
    folder = base / f"iter_{iteration:07d}"
    if folder.is_symlink() or format_of(folder) is None:
        return False
    removed = base / _hidden(iteration, "removed")
    try:
        folder.rename(removed)
        shutil.rmtree(removed)
    except OSError as error:
        log.warning("the checkpoint of iteration %d could not be deleted: %s", iteration, error)
        return False
    return True


def _hidden(iteration: int, kind: Literal["tmp", "replaced", "removed"]) -> str:
    return f".iter_{iteration:07d}.{kind}-{os.getpid()}-{time.time_ns():x}"


def _aside(base: Path) -> dict[int, Path]:
    """Return complete checkpoints that were moved aside for a newer one of their iteration that never arrived."""
    matches = ((_HIDDEN.fullmatch(child.name), child) for child in base.glob(".iter_*.replaced-*"))
    found = {int(match[1]): child for match, child in matches if match and format_of(child)}
    return {iteration: child for iteration, child in found.items() if not (base / f"iter_{iteration:07d}").exists()}


def _clean_leftovers(base: Path) -> None:
    for iteration, child in _aside(base).items():
        child.rename(base / f"iter_{iteration:07d}")
    for child in list(base.iterdir()):
        if _HIDDEN.fullmatch(child.name) and child.is_dir():
            log.info("removing %s, left behind by a save that did not finish", child)
            shutil.rmtree(child, ignore_errors=True)
