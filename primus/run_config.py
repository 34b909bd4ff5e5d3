"""`config.yaml` of a run folder describes the run that lies there: a start that is refused gives it back.

Whoever starts a run writes the file and keeps the one before, an empty one if there was none; the run drops that once it has
found its input right, and puts it back if it has not.
"""

import contextlib
import os
from pathlib import Path

__all__ = ["accept_config", "put_back_config", "write_config"]

_BEFORE = ".config.before.yaml"


def write_config(container: str, folder: Path) -> Path:
    """Write the file whole or not at all: the ranks of other machines may be reading it. OSError if it cannot be written."""
    file = folder / "config.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".config.{os.getpid()}.yaml"
    try:
        draft.write_text(container, encoding="utf-8")
        # One that is there already is older than a start that was killed before it was accepted: it is the one to keep.
        before = folder / _BEFORE
        if not before.exists():
            before.touch()
            if file.is_file():
                file.rename(before)
        draft.replace(file)
    except OSError:
        draft.unlink(missing_ok=True)
        put_back_config(folder)
        raise
    return file


def accept_config(folder: Path) -> None:
    """The run has begun: the new file stays."""
    with contextlib.suppress(OSError):
        (folder / _BEFORE).unlink(missing_ok=True)


def put_back_config(folder: Path) -> None:
    """The run was refused: the file before it, if there was one, describes what lies in the folder."""
    file, before = folder / "config.yaml", folder / _BEFORE
    with contextlib.suppress(OSError):
        before.replace(file)
        if not file.stat().st_size:
            file.unlink()
