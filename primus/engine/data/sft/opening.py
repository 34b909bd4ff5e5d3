"""`Opener`: from the rows of a split to its samples, and to packs of them if the run packs; what it makes is kept on disk."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from primus.engine.config import ConfigContainer, SFTConfig, TokenizerConfig
from primus.engine.data.cache import cached_arrays, held_arrays
from primus.engine.data.sft.packing import Packs, pack
from primus.engine.data.sft.rows import Rows
from primus.engine.data.sft.samples import Samples, format_of, reader
from primus.engine.data.sft.shape import Shape
from primus.engine.data.sft.tokens import CACHE_KEY, NAMES, Progress, Tokens, tokenised
from primus.engine.data.tokenizer import Tokenizer
from primus.engine.data.tokenizer.identity import tokenizer_identity
from primus.errors import InputError

__all__ = ["Opened", "Opener"]

log = logging.getLogger(__name__)

_VERSION = 3
"""Raised when equal rows become other tokens or packs."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A split."""

    samples: Samples | Tokens
    packs: Packs | None
    """None: a sample a sequence."""


class Opener:
    """Opens rows the way that a run asks for."""

    def __init__(self, rows: SFTConfig, tokenizer: Tokenizer, named: TokenizerConfig, shape: Shape) -> None:
        """`named` says which tokenizer it is."""
        self.shape, self.rows, self.tokenizer, self._named = shape, rows, tokenizer, named
        self._most = min(shape.seq_length, (rows.packing and rows.packing.max_sample_length) or shape.seq_length)
        self.folder = _folder(rows) / _name(rows, named.model or named.type)

    @classmethod
    def of(cls, config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer) -> "Opener":
        """Return that of a run."""
        return cls(rows, tokenizer, config.tokenizer, Shape.of(config, rows, tokenizer.eod))

    def with_rows(self, rows: SFTConfig) -> "Opener":
        """Return one for rows of another configuration, all else equal."""
        return Opener(rows, self.tokenizer, self._named, self.shape)

    def open(
        self, rows: Rows, what: str, *, learns: bool = False, prepares: bool = False, progress: Progress | None = None
    ) -> Opened:
        """Return a split's samples; they are read from disk if somebody tokenised them, which packing does, or who `prepares`.

        InputError if a row is no sample, the folder of tokenised rows cannot be used, or a run that `learns` from them has
        nothing to learn.
        """
        samples = self.samples(rows)
        description = self.description(samples)
        packing = self.rows.packing
        if packing is None and not prepares:
            held = held_arrays(self.folder, "tokens", description, NAMES) if self.folder.is_dir() else None
            if held is None:
                return Opened(samples, None)
            log.info("%s: %d samples that were tokenised before, from %s", what, len(samples), self.folder)
            _tell(Tokens(*held), what, learns=learns)
            return Opened(Tokens(*held), None)
        log.info("%s: %d rows, tokenised into %s if they are not there yet", what, len(samples), self.folder)
        tokens = tokenised(samples, self.folder, description, workers=self.rows.workers, progress=progress)
        if not prepares:
            _tell(tokens, what, learns=learns)
        return Opened(tokens, None if packing is None else self._packed(tokens, description, what))

    def samples(self, rows: Rows) -> Samples:
        """Return the samples of rows, each tokenised when it is asked for."""
        return Samples(rows, self.rows, self.tokenizer, tokenizer_model=self._named.model, max_length=self._most)

    def recipe(self, sample_format: Mapping[str, Any]) -> dict[str, Any]:
        """Return what decides the tokens of rows besides these themselves; values of JSON."""
        return {"version": _VERSION, "tokenizer": tokenizer_identity(self._named, self.tokenizer), **sample_format}

    def packing(self) -> dict[str, Any]:
        """Return what decides packs besides their samples; values of JSON."""
        packing = self.rows.packing
        assert packing is not None
        return {
            "size": packing.size,
            "algorithm": packing.algorithm,
            "multiple": self.shape.segment_multiple,
            "seed": self.rows.seed,
        }

    @property
    def packs(self) -> bool:
        """Whether several samples share a sequence."""
        return self.rows.packing is not None

    def note(self, rows: Rows) -> dict[str, Any]:
        """Return what decides packs of rows, for a file of them; values of JSON."""
        return {**self.recipe(self.samples(rows).format), "packing": self.packing()}

    def note_of_kind(self, *, is_chat: bool) -> dict[str, Any]:
        """Return the same of any rows that are conversations, or none."""
        read = reader(self.rows, self.tokenizer, self._named.model, is_chat=is_chat)
        return {**self.recipe(format_of(read, self.rows, self._most)), "packing": self.packing()}

    def description(self, samples: Samples) -> dict[str, Any]:
        """Return what tells these tokens from others."""
        return {"rows": samples.state(), **self.recipe(samples.format)}

    def _packed(self, tokens: Tokens, description: dict[str, Any], what: str) -> Packs:
        packing, step = self.rows.packing, self.shape.segment_multiple
        assert packing is not None
        lengths = -(-tokens.lengths // step) * step

        def build() -> tuple[Any, Any]:
            bins = pack(lengths, packing, seed=self.rows.seed)
            numbers = np.fromiter((number for each in bins for number in each), np.int64)
            return numbers, np.cumsum([0, *map(len, bins)], dtype=np.int64)

        parts = {**description, "packing": self.packing()}
        packs = Packs(*cached_arrays(self.folder, "packs", parts, ("numbers", "bounds"), build, key=CACHE_KEY))
        share = 100 * int(lengths.sum()) / (len(packs) * packing.size)
        log.info("%s: %d samples in %d packs, which they fill to %.1f %%", what, len(tokens), len(packs), share)
        return packs


def _tell(tokens: Tokens, what: str, *, learns: bool) -> None:
    """Say how many samples are cut or have nothing to learn; InputError if a run would have nothing to learn."""
    cut, mute = int((tokens.lost > 0).sum()), int((tokens.num_trained == 0).sum())
    if learns and mute == len(tokens):
        raise InputError(f"{what}: no row has a token to train on; conversations need words of the assistant")
    if cut:
        log.warning("%s: %d of %d samples are cut to the length of a sequence", what, cut, len(tokens))
    if mute:
        text = "%s: %d of %d samples have no token left to train on and count for nothing; a longer seq_length may help"
        log.warning(text, what, mute, len(tokens))


def _folder(rows: SFTConfig) -> Path:
    if rows.cache is not None:
        return Path(rows.cache)
    train = Path(rows.train)
    if train.exists():
        return (train if train.is_dir() else train.parent) / "packed"
    from datasets import config

    return Path(config.HF_DATASETS_CACHE) / "packed" / _plain(rows.train)


def _name(rows: SFTConfig, tokenizer: str) -> str:
    return _plain(rows.cache_name or (Path(tokenizer).name if Path(tokenizer).exists() else tokenizer))


def _plain(name: str) -> str:
    """Return a name as that of a folder."""
    return re.sub(r"[^\w.-]+", "--", name)
