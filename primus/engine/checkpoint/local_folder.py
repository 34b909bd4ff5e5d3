"""Local checkpoints on disk: each rank's own folder on its node, and what lies in those that a rank can see. No torch.

`DIR/run_K/rank_RRRRR/iter_NNNNNNN-STAMP/` holds `part_RRRRR.pt`, copies of other ranks' parts, their checksums, `local.json`.
The stamp tells one save from another of the same iteration and orders them. All ranks write under a hidden name, then all
rename, then all remove what is older: at any moment the folders of one save or another are there on every rank.
"""

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from primus.engine.checkpoint.folder import sync_folder, write_durably

__all__ = [
    "LocalCheckpoint",
    "found",
    "iteration_of",
    "open_temporary",
    "part_file",
    "prune",
    "publish",
    "rank_folder",
    "stamp_of",
    "write_description",
]

log = logging.getLogger(__name__)

_DESCRIPTION = "local.json"
_NAME = re.compile(r"iter_(\d{7,})-([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """One rank's folder of one save; its name says which."""

    layout: Mapping[str, Any]
    """What the parts depend on."""
    parts: tuple[int, ...]
    """Ranks whose parts are in it."""


def rank_folder(run: Path, rank: int) -> Path:
    """Return a rank's own folder."""
    return run / f"rank_{rank:05d}"


def part_file(rank: int) -> str:
    """Return the name of a rank's part."""
    return f"part_{rank:05d}.pt"


def open_temporary(own: Path, iteration: int, stamp: int) -> Path:
    """Make the folder to write into, and remove what killed saves left behind."""
    own.mkdir(parents=True, exist_ok=True)
    for leftover in own.glob(".iter_*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = own / f".iter_{iteration:07d}-{stamp:016x}"
    temporary.mkdir()
    return temporary


def write_description(folder: Path, checkpoint: LocalCheckpoint) -> None:
    """Write what `found` reads, last of all."""
    write_durably(folder / _DESCRIPTION, json.dumps(asdict(checkpoint)).encode())


def publish(temporary: Path) -> Path:
    """Make a finished, synced temporary folder a checkpoint."""
    sync_folder(temporary)
    final = temporary.with_name(temporary.name.removeprefix("."))
    temporary.rename(final)
    sync_folder(final.parent)
    return final


def found(run: Path) -> dict[str, dict[Path, LocalCheckpoint]]:
    """Return every checkpoint folder of a run that this rank can see, those of other ranks on the node too, by the save."""
    saves: dict[str, dict[Path, LocalCheckpoint]] = {}
    for folder in sorted(run.glob("rank_*/iter_*")):
        try:
            description = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
            parts = tuple(description.pop("parts"))
            checkpoint = LocalCheckpoint(parts=parts, **description)
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s is no complete local checkpoint and is not used: %s", folder, error)
            continue
        if _NAME.fullmatch(folder.name):
            saves.setdefault(folder.name, {})[folder] = checkpoint
    return saves


def stamp_of(name: str) -> str:
    """Return what orders saves by the time they were made."""
    return name.rpartition("-")[2]


def iteration_of(name: str) -> int:
    """Return the iteration of a save."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1])


def prune(own: Path, *, keep: str | None = None, after: int = -1) -> None:
    """Remove a rank's checkpoints of later iterations than `after`, but for `keep`."""
    for folder in own.glob("iter_*"):
        match = _NAME.fullmatch(folder.name)
        if match is None or folder.name == keep or int(match[1]) <= after:
            continue
        hidden = folder.with_name(f".{folder.name}")
        try:
            folder.rename(hidden)
            shutil.rmtree(hidden)
        except OSError as error:
            log.warning("the local checkpoint %s could not be deleted: %s", folder, error)
