"""`Parts`: the folder `PREFIX.parts/` of a preparation under way: for each unit its tokens, their lengths and what was found.

A part counts as done when its `.json` is there, which is renamed into place last. The manifest holds what the parts were made
from; parts of another input, tokenizer or option are replaced. Files of other names are never touched.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primus.engine.config import TokenizerConfig
from primus.engine.data.prepare.sources import Unit
from primus.errors import InputError

__all__ = ["Fault", "Part", "Parts", "write_part"]

Fault = tuple[str, int, str]
"""File, line within the unit (0: the whole file), and what is wrong there."""

_OURS = re.compile(r"manifest|\d{6,}\.(bin|lengths\.npy|json)(\.\d+\.tmp(\.npy)?)?")
_DONE = re.compile(r"\d{6,}\.json")


@dataclass(slots=True)
class Part:
    """What a unit came to."""

    size: int
    """Bytes of input."""
    documents: int = 0
    tokens: int = 0
    num_empty: int = 0
    num_broken: int = 0
    empty: list[Fault] = field(default_factory=list)
    """The first ones."""
    broken: list[Fault] = field(default_factory=list)
    """The first ones."""


class Parts:
    """The parts of one preparation."""

    def __init__(
        self, prefix: Path, units: Sequence[Unit], tokenizer: TokenizerConfig, *, append_eod: bool, json_key: str
    ) -> None:
        self.folder = Path(f"{prefix}.parts")
        stamps = [_stamp(Path(file)) for unit in units for file in unit.files]
        made_from = [[asdict(unit) for unit in units], stamps, asdict(tokenizer), append_eod, json_key]
        made_from.append([list(_stamps_under(name)) for name in (tokenizer.model, tokenizer.vocab_file, tokenizer.merge_file)])
        self._digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()
        self._marker = self.folder / "manifest"

    def are_ours(self) -> bool:
        """Tell whether the folder holds parts of this very preparation."""
        return self._marker.is_file() and self._marker.read_text() == self._digest

    def open(self) -> None:
        """Create the folder, or empty it of another preparation's parts."""
        if self.are_ours():
            return
        if self.folder.exists() and not self._marker.is_file():
            raise InputError(f"{self.folder} exists and holds no parts of a dataset; choose another --output-prefix")
        self.remove()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._marker.write_text(self._digest)

    def read(self, number: int) -> Part | None:
        """Return what a unit came to; None if it is not done."""
        file = self.folder / f"{number:06d}.json"
        if not file.exists():
            return None
        fields = json.loads(file.read_text(encoding="utf-8"))
        for kind in ("empty", "broken"):
            fields[kind] = [tuple(fault) for fault in fields[kind]]
        return Part(**fields)

    def forget(self, number: int) -> None:
        """Let a unit count as not done."""
        (self.folder / f"{number:06d}.json").unlink(missing_ok=True)

    def remove_unless_used(self) -> None:
        """Remove the parts if none is done."""
        if not any(_DONE.fullmatch(file.name) for file in self.folder.iterdir()):
            self.remove()

    def tokens_and_lengths(self, number: int) -> tuple[Path, NDArray[np.int32]]:
        """Return a unit's file of tokens, and the length of each of its documents."""
        return self.folder / f"{number:06d}.bin", np.load(self.folder / f"{number:06d}.lengths.npy")

    def remove(self) -> None:
        """Remove the parts, and the folder if nothing else is in it."""
        if not self.folder.exists():
            return
        # The manifest goes last: a removal that was cut short is recognised and done again.
        for file in sorted(self.folder.iterdir(), key=lambda file: file == self._marker):
            if _OURS.fullmatch(file.name):
                file.unlink()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()


def write_part(folder: Path, number: int, part: Part, draft: Path, lengths: Sequence[int]) -> None:
    """Put a part in place: the tokens in `draft`, then their lengths, then the part itself."""
    draft.replace(folder / f"{number:06d}.bin")
    for suffix in ("lengths.npy", "json"):
        target = folder / f"{number:06d}.{suffix}"
        temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        with temporary.open("wb") as file:
            if suffix == "json":
                file.write(json.dumps(asdict(part)).encode())
            else:
                np.save(file, np.asarray(lengths, np.int32))
        temporary.replace(target)


def _stamp(file: Path) -> tuple[str, int, int]:
    status = file.stat()
    return str(file), status.st_size, status.st_mtime_ns


def _stamps_under(name: str | None) -> Iterator[tuple[str, int, int]]:
    """Yield the state of a tokenizer's files: one that was trained anew makes other tokens."""
    if name is not None and Path(name).exists():
        files = [Path(name)] if Path(name).is_file() else sorted(Path(name).iterdir())
        yield from (_stamp(file) for file in files if file.is_file())
