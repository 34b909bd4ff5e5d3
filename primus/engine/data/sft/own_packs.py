"""Packs from files for a run, `open_packs`: refused if something else decided them than decides its own."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from primus.engine.data.sft.opening import Opened, Opener
from primus.engine.data.sft.packed_files import check_metadata, made_with, packed_files, read_packs
from primus.engine.data.sft.packing import Packs
from primus.engine.data.sft.tokens import Tokens
from primus.errors import InputError

__all__ = ["check_packs", "open_packs"]

log = logging.getLogger(__name__)

_SHOWN = 60
"""Characters of a text."""


def open_packs(opener: Opener, spec: str, key: str, what: str) -> Opened:
    """Return the packs of files; `key` is what named them. InputError if they are not such as this run would make."""
    try:
        files, is_known = _own(opener, spec)
        # Arrays lie beside the files that they were read from, as those of rows do.
        tokens, packs = read_packs(files, files[0].parent / "arrays" if opener.rows.cache is None else opener.folder)
        _check_lengths(opener, tokens, packs)
    except InputError as error:
        raise InputError(f"{key} {spec}: {error}") from error
    if not is_known:
        text = "%s: %s does not say which tokenizer, template and seed made it: nothing tells whether they are this run's"
        log.warning(text, what, spec)
    log.info("%s: %d samples in %d packs of %s", what, len(tokens), len(packs), spec)
    return Opened(tokens, packs)


def check_packs(opener: Opener, spec: str, key: str) -> None:
    """Raise InputError if files of packs are not there, or say that they were not made for this run."""
    try:
        _own(opener, spec)
    except InputError as error:
        raise InputError(f"{key} {spec}: {error}") from error


def _own(opener: Opener, spec: str) -> tuple[list[Path], bool]:
    """Return the files of a name, and whether they say that they are this run's."""
    files, packing = packed_files(spec), opener.rows.packing
    made = made_with(files)
    if made is not None:
        _check_origin(opener, made)
    if packing is not None and packing.metadata_file is not None:
        check_metadata(Path(packing.metadata_file), packing.size)
    return files, made is not None


def _check_origin(opener: Opener, made: Mapping[str, Any]) -> None:
    """Refuse packs that something else than in this run decided; the algorithm may be any."""
    note = opener.note_of_kind(is_chat="chat_template" in made)
    note["packing"]["algorithm"] = made["packing"]["algorithm"]
    # As the file holds it, where a tuple is a list.
    here, there = _flat(json.loads(json.dumps(note))), _flat(made)
    differing = [
        f"{name} is {there.get(name, 'not set')} there and {here.get(name, 'not set')} here"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise InputError(
            f"it was not made for this run: {'; '.join(differing)}. Prepare it again by `primus data prepare --sft`, or take "
            "the values that it was made with"
        )


def _check_lengths(opener: Opener, tokens: Tokens, packs: Packs) -> None:
    """Refuse packs that are too long for a sequence, and ids that the tokenizer does not have."""
    step, size, vocab_size = opener.shape.segment_multiple, opener.shape.seq_length, opener.tokenizer.vocab_size
    lengths = np.add.reduceat(-(-tokens.lengths // step) * step, packs.bounds[:-1])
    if lengths.max() > size:
        filled = f", with samples filled up to multiples of {step}" if step > 1 else ""
        raise InputError(f"a pack of it has {lengths.max()} tokens{filled}, a sequence {size}: raise seq_length")
    if not 0 <= int(tokens.ids.min()) <= int(tokens.ids.max()) < vocab_size:
        raise InputError(
            f"it holds ids from {tokens.ids.min()} to {tokens.ids.max()}, and the tokenizer has {vocab_size} of them"
        )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their paths; texts that are long by their beginnings and a hash."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= _flat(value, f"{prefix}{name}.")
        else:
            is_long = isinstance(value, str) and len(value) > _SHOWN
            leaves[prefix + name] = f"{value[:_SHOWN]!r}... ({xxhash.xxh3_64_hexdigest(value.encode())})" if is_long else value
    return leaves
