"""`check_index`: do the three arrays of an index agree? No torch.

One wrong byte in them would serve other tokens than the document's without a word. Everything follows from the lengths, so a
pass over the arrays at opening finds it.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from primus.errors import InputError

__all__ = ["check_index"]

_CHUNK = 1 << 16
"""Entries that are looked at together; arrays of this size stay in the cache, and copies of a large mapped index small."""


def check_index(
    file: Path, lengths: NDArray[np.int32], offsets: NDArray[np.int64], documents: NDArray[np.int64], itemsize: int
) -> int:
    """Return the bytes of all sequences; InputError names the first entry that contradicts the others."""
    end = 0
    for first in range(0, len(lengths), _CHUNK):
        sizes = lengths[first : first + _CHUNK].astype(np.int64)
        sizes *= itemsize
        starts = np.cumsum(sizes)
        starts += end - sizes
        if (entry := _first_of(sizes < 0, first)) is not None:
            raise _damage(file, f"the length of sequence {entry} is {lengths[entry]}")
        if (entry := _first_of(offsets[first : first + _CHUNK] != starts, first)) is not None:
            due = starts[entry - first]
            raise _damage(file, f"sequence {entry} starts at byte {offsets[entry]}, but those before it end at byte {due}")
        end = int(starts[-1] + sizes[-1])
    _check_documents(file, documents, len(lengths))
    return end


def _check_documents(file: Path, documents: NDArray[np.int64], sequences: int) -> None:
    if not len(documents):
        raise _damage(file, "it has no array of documents")
    if documents[0] != 0:
        raise _damage(file, f"its first document starts at sequence {documents[0]}, not at 0")
    for first in range(0, len(documents) - 1, _CHUNK):
        bounds = documents[first : first + _CHUNK + 1]
        if (entry := _first_of(bounds[1:] < bounds[:-1], first)) is not None:
            raise _damage(file, f"document {entry} reaches from sequence {documents[entry]} to {documents[entry + 1]}")
    if documents[-1] != sequences:
        raise _damage(file, f"its documents end at sequence {documents[-1]}, but it has {sequences}")


def _first_of(wrong: NDArray[np.bool_], first: int) -> int | None:
    return first + int(wrong.argmax()) if wrong.any() else None


def _damage(file: Path, what: str) -> InputError:
    return InputError(f"{file} is damaged: {what}; prepare the dataset again")
