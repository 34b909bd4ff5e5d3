"""Where datasets and tokenizers are written: looked at before the work begins, and told in one line if it fails. No torch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from primus.errors import InputError, RunError
from primus.writable import why_unwritable

__all__ = ["check_output_folder", "check_output_prefix", "writing"]


def check_output_prefix(prefix: Path) -> None:
    """Raise InputError if the two files of a dataset cannot be made under this prefix."""
    if prefix.name in ("", ".."):
        raise InputError(f"output prefix {prefix} is a folder; add the name of the dataset's files, for example data/text")
    _check_parent(f"output prefix {prefix}", prefix.parent)
    _check_files(f"output prefix {prefix}", [Path(f"{prefix}.bin"), Path(f"{prefix}.idx")])


def check_output_folder(folder: Path, names: Sequence[str]) -> None:
    """Raise InputError if files of these names cannot be made in this folder."""
    _check_parent(f"output {folder}", folder)
    _check_files(f"output {folder}", [folder / name for name in names])


def _check_files(what: str, files: Sequence[Path]) -> None:
    for file in files:
        if file.is_dir():
            raise InputError(f"{what}: {file} is a folder; choose another place")


def _check_parent(what: str, folder: Path) -> None:
    reason = why_unwritable(folder)
    if reason:
        raise InputError(f"{what} cannot be written: {reason}; choose another place")


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn what the system says about a write into one line: the input was sound, but the disk is full, say."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error.strerror or error}") from error
