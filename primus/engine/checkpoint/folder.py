"""Checkpoint folders on disk: which are complete, how one is published, which are kept. No torch.

A base folder holds `iter_NNNNNNN/` folders and `latest_checkpointed_iteration.txt`. A checkpoint is written under a
temporary name and renamed when all of it is durable; the tracker moves last. So at any moment every `iter_` folder with a
`metadata.json` is whole, and killing a save leaves the previous checkpoint as it was.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "METADATA",
    "TRACKER",
    "clean_leftovers",
    "complete_iterations",
    "iteration_folder",
    "newest",
    "publish",
    "read_tracker",
    "retain",
    "temporary_folder",
    "write_durably",
]

TRACKER = "latest_checkpointed_iteration.txt"
METADATA = "metadata.json"
_FOLDER = re.compile(r"iter_(\d{7,})")
_TEMPORARY = ".saving_"
_REPLACED = ".replaced_"


def iteration_folder(base: Path, iteration: int) -> Path:
    """Return where an iteration's checkpoint lies."""
    return base / f"iter_{iteration:07d}"


def temporary_folder(base: Path, iteration: int) -> Path:
    """Return where it lies while it is written."""
    return base / f"{_TEMPORARY}{iteration:07d}"


def complete_iterations(base: Path) -> list[int]:
    """Return the iterations of all whole checkpoints, ascending; other folders do not count."""
    if not base.is_dir():
        return []
    matches = ((_FOLDER.fullmatch(child.name), child) for child in base.iterdir())
    return sorted(int(match[1]) for match, child in matches if match and (child / METADATA).is_file())


def read_tracker(base: Path) -> int | None:
    """Return the iteration that the tracker names; None without a readable one."""
    try:
        return int((base / TRACKER).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def newest(base: Path) -> tuple[int | None, str | None]:
    """Return the iteration to start from and a notice if it is not what the tracker says; (None, None) without checkpoint.

    A tracker that is lost, or that names a folder that is not whole, does not lose the run: the newest whole one counts.
    """
    named, whole = read_tracker(base), complete_iterations(base)
    if named in whole:
        return named, None
    if not whole:
        return None, None
    tracker = base / TRACKER
    found = f"{tracker} is missing or unreadable" if named is None else f"{tracker} names iteration {named}, which is not whole"
    return whole[-1], f"{found}; going on from the newest whole checkpoint, iteration {whole[-1]}"


def publish(base: Path, iteration: int) -> Path:
    """Make a finished temporary folder the iteration's checkpoint, then move the tracker to it."""
    temporary, final = temporary_folder(base, iteration), iteration_folder(base, iteration)
    _sync_folder(temporary)
    aside = base / f"{_REPLACED}{iteration:07d}"
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    _sync_folder(base)
    write_durably(base / TRACKER, str(iteration).encode())
    shutil.rmtree(aside, ignore_errors=True)
    return final


def write_durably(file: Path, data: bytes) -> None:
    """Write a small file so that it is either the old one or the new one, whatever happens."""
    temporary = file.with_name(f".{file.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)
    _sync_folder(file.parent)


def clean_leftovers(base: Path) -> None:
    """Remove what saves that were killed left behind; a folder that was moved aside and not replaced is put back."""
    for child in _named(base, _REPLACED):
        final = iteration_folder(base, int(child.name.removeprefix(_REPLACED)))
        if final.exists():
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.rename(final)
    for child in _named(base, _TEMPORARY):
        shutil.rmtree(child, ignore_errors=True)


def retain(base: Path, *, newest_iteration: int, previous: int | None, interval: int | None) -> int | None:
    """Delete the previous checkpoint unless it is at a multiple of `interval`; return the iteration that was deleted."""
    if interval is None or previous is None or previous in (0, newest_iteration) or previous % interval == 0:
        return None
    folder = iteration_folder(base, previous)
    if folder.is_symlink() or not folder.is_dir():
        return None
    # The metadata goes first, so that a deletion cut short leaves no folder that looks whole.
    (folder / METADATA).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    return previous


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's `metadata.json`."""
    data: dict[str, Any] = json.loads((folder / METADATA).read_text(encoding="utf-8"))
    return data


def _named(base: Path, prefix: str) -> Iterator[Path]:
    if base.is_dir():
        yield from [child for child in base.iterdir() if child.name.startswith(prefix) and child.name[len(prefix) :].isdigit()]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
