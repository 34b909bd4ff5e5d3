"""`new_folder`: a folder that is there whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from primus.engine.checkpoint.folder import sync_folder
from primus.errors import InputError, RunError
from primus.writable import why_unwritable

__all__ = ["new_folder"]


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder beside `final` that takes its name after the body, and is removed if the body fails.

    InputError if `final` holds something or cannot be made.
    """
    final = final.absolute()
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"{final} is there already and not empty; give a folder that does not exist yet")
    refusal = why_unwritable(final)
    if refusal:
        raise InputError(f"{final} cannot be written: {refusal}; choose another folder")
    temporary = final.with_name(f".{final.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_folder(temporary)
        temporary.rename(final)
        sync_folder(final.parent)
    except OSError as error:
        raise RunError(f"{final} could not be written: {error.strerror} ({error.filename or temporary})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
