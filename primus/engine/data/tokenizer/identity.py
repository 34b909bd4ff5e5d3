"""`tokenizer_identity`: what tells a tokenizer from others, wherever its files lie. No torch."""

from collections.abc import Iterator
from pathlib import Path

import xxhash

from primus.engine.config import TokenizerConfig
from primus.engine.data.tokenizer.base import Tokenizer
from primus.hub import cached_folder

__all__ = ["tokenizer_identity"]

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tiktoken.model")
"""Files of a folder that decide which ids a text has."""


def tokenizer_identity(config: TokenizerConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """Return its number of ids, its end and a hash of each file; the name stands for files that are not on this machine."""
    files = {file.name: xxhash.xxh3_64_hexdigest(file.read_bytes()) for file in _files(config)}
    named = {} if files else {"name": config.model or config.type}
    return {"vocab_size": tokenizer.vocab_size, "end": tokenizer.eod, "files": files, **named}


def _files(config: TokenizerConfig) -> Iterator[Path]:
    for name in (config.vocab_file, config.merge_file):
        if name is not None:
            yield Path(name)
    if config.model is None:
        return
    place: Path | None = Path(config.model)
    if place is not None and place.is_file():
        yield place
        return
    if place is not None and not place.is_dir():
        place = cached_folder(config.model, weights=False)
    if place is not None:
        yield from (place / name for name in _FILES if (place / name).is_file())
