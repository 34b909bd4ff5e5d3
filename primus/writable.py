"""`why_unwritable` tries whether something can be made in a folder: asking for permissions would not tell of all reasons."""

import tempfile
from pathlib import Path

__all__ = ["why_unwritable"]


def why_unwritable(folder: Path) -> str | None:
    """Return why a folder cannot be made or written into; None if it can. Nothing is left behind."""
    try:
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        Path(tempfile.mkdtemp(prefix=".primus-", dir=there)).rmdir()
    except NotADirectoryError:
        return f"{there} is a file, not a folder"
    except OSError as error:
        return f"{error.strerror} ({error.filename})" if error.filename == str(folder) else str(error.strerror)
    return None
