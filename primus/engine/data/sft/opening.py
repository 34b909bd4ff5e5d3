"""`Opener`: from the rows of a split to its samples, and to packs of them if the run packs; what it makes is kept on disk."""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from primus.engine.config import ConfigContainer, SFTConfig, TokenizerConfig
from primus.engine.data.cache import cached_arrays, held_arrays
from primus.engine.data.sft.packed_files import check_metadata, made_with, packed_files, read_packs
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

_SHOWN = 60
_VERSION = 1
"""Raised when equal rows become other tokens or packs."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A split."""

    samples: Samples | Tokens
    packs: Packs | None
    """None: a sample a sequence."""


class Opener:
    """Opens rows, and packs that were made of them, the way that a run asks for."""

    def __init__(self, rows: SFTConfig, tokenizer: Tokenizer, named: TokenizerConfig, shape: Shape) -> None:
        """`named` says which tokenizer it is."""
        self.shape, self._rows, self._tokenizer, self._named = shape, rows, tokenizer, named
        self._most = min(shape.seq_length, (rows.packing and rows.packing.max_sample_length) or shape.seq_length)
        self.folder = _folder(rows) / _name(rows, named.model or named.type)

    @classmethod
    def of(cls, config: ConfigContainer, rows: SFTConfig, tokenizer: Tokenizer) -> "Opener":
        """Return that of a run."""
        return cls(rows, tokenizer, config.tokenizer, Shape.of(config, rows, tokenizer.eod))

    def open(self, rows: Rows, what: str, *, prepares: bool = False, progress: Progress | None = None) -> Opened:
        """Return a split's samples; they are read from disk if somebody tokenised them, which packing does, or who `prepares`.

        InputError if a row is no sample, or the folder of tokenised rows cannot be used.
        """
        samples = self.samples(rows)
        description = self.description(samples)
        packing = self._rows.packing
        if packing is None and not prepares:
            held = held_arrays(self.folder, "tokens", description, NAMES) if self.folder.is_dir() else None
            if held is None:
                return Opened(samples, None)
            log.info("%s: %d samples that were tokenised before, from %s", what, len(samples), self.folder)
            _tell(Tokens(*held), what)
            return Opened(Tokens(*held), None)
        log.info("%s: tokenising %d rows, unless they lie in %s", what, len(samples), self.folder)
        tokens = tokenised(samples, self.folder, description, workers=self._rows.workers, progress=progress)
        if not prepares:
            _tell(tokens, what)
        return Opened(tokens, None if packing is None else self._packed(tokens, description, what))

    def samples(self, rows: Rows) -> Samples:
        """Return the samples of rows, each tokenised when it is asked for."""
        return Samples(rows, self._rows, self._tokenizer, tokenizer_model=self._named.model, max_length=self._most)

    def recipe(self, sample_format: Mapping[str, Any]) -> dict[str, Any]:
        """Return what decides the tokens of rows besides these themselves; values of JSON."""
        return {"version": _VERSION, "tokenizer": tokenizer_identity(self._named, self._tokenizer), **sample_format}

    def packing(self) -> dict[str, Any]:
        """Return what decides packs besides their samples; values of JSON."""
        packing = self._rows.packing
        assert packing is not None
        return {
            "size": packing.size,
            "algorithm": packing.algorithm,
            "multiple": self.shape.segment_multiple,
            "seed": self._rows.seed,
        }

    @property
    def packs(self) -> bool:
        """Whether several samples share a sequence."""
        return self._rows.packing is not None

    def note(self, rows: Rows) -> dict[str, Any]:
        """Return what decides packs of rows, for a file of them."""
        return {**self.recipe(self.samples(rows).format), "packing": self.packing()}

    def description(self, samples: Samples) -> dict[str, Any]:
        """Return what tells these tokens from others."""
        return {"rows": samples.state(), **self.recipe(samples.format)}

    def open_packs(self, spec: str, key: str, what: str) -> Opened:
        """Return the packs of files; `key` is what named them. InputError if they are not such as this run would make."""
        try:
            files, is_known = self._own(spec)
            # Arrays lie beside the files that they were read from, as those of rows do.
            tokens, packs = read_packs(files, files[0].parent / "arrays" if self._rows.cache is None else self.folder)
            self._check_packs(tokens, packs)
        except InputError as error:
            raise InputError(f"{key} {spec}: {error}") from error
        if not is_known:
            log.warning(
                "%s: %s does not say which tokenizer, template and seed made it: nothing tells whether they are this run's",
                what,
                spec,
            )
        log.info("%s: %d samples in %d packs of %s", what, len(tokens), len(packs), spec)
        return Opened(tokens, packs)

    def check_packs(self, spec: str, key: str) -> None:
        """Raise InputError if files of packs are not there, or say that they were not made for this run."""
        try:
            self._own(spec)
        except InputError as error:
            raise InputError(f"{key} {spec}: {error}") from error

    def _own(self, spec: str) -> tuple[list[Path], bool]:
        """Return the files of a name, and whether they say that they are this run's."""
        files, packing = packed_files(spec), self._rows.packing
        made = made_with(files)
        if made is not None:
            self._check(made)
        if packing is not None and packing.metadata_file is not None:
            check_metadata(Path(packing.metadata_file), packing.size)
        return files, made is not None

    def _check(self, made: Mapping[str, Any]) -> None:
        """Refuse packs that something else than in this run decided; the bins may be any."""
        is_chat = "chat_template" in made
        read = reader(self._rows, self._tokenizer, self._named.model, is_chat=is_chat)
        packing = {**self.packing(), "algorithm": made["packing"]["algorithm"]}
        # As the file holds it, where a tuple is a list.
        here = _flat(json.loads(json.dumps({**self.recipe(format_of(read, self._rows, self._most)), "packing": packing})))
        there = _flat(made)
        differing = [
            f"{name} is {there.get(name, 'not set')} there and {here.get(name, 'not set')} here"
            for name in sorted(here.keys() | there.keys())
            if here.get(name) != there.get(name)
        ]
        if differing:
            raise InputError(
                f"it was not made for this run: {'; '.join(differing)}. Prepare it again by `primus data prepare --sft`, or "
                "take the values that it was made with"
            )

    def _check_packs(self, tokens: Tokens, packs: Packs) -> None:
        """Refuse packs that are too long for a sequence, and ids that the tokenizer does not have."""
        step, size = self.shape.segment_multiple, self.shape.seq_length
        lengths = np.add.reduceat(-(-tokens.lengths // step) * step, packs.bounds[:-1])
        if lengths.max() > size:
            filled = f", with samples filled up to multiples of {step}" if step > 1 else ""
            raise InputError(f"a pack of it has {lengths.max()} tokens{filled}, a sequence {size}: raise seq_length")
        if not 0 <= int(tokens.ids.min()) <= int(tokens.ids.max()) < self._tokenizer.vocab_size:
            raise InputError(
                f"it holds ids from {tokens.ids.min()} to {tokens.ids.max()}, and the tokenizer has "
                f"{self._tokenizer.vocab_size} of them"
            )

    def _packed(self, tokens: Tokens, description: dict[str, Any], what: str) -> Packs:
        packing, step = self._rows.packing, self.shape.segment_multiple
        assert packing is not None
        lengths = -(-tokens.lengths // step) * step

        def build() -> tuple[Any, Any]:
            bins = pack(lengths, packing, seed=self._rows.seed)
            numbers = np.fromiter((number for each in bins for number in each), np.int64)
            return numbers, np.cumsum([0, *map(len, bins)], dtype=np.int64)

        parts = {**description, "packing": self.packing()}
        packs = Packs(*cached_arrays(self.folder, "packs", parts, ("numbers", "bounds"), build, key=CACHE_KEY))
        share = 100 * int(lengths.sum()) / (len(packs) * packing.size)
        log.info("%s: %d samples in %d packs, which they fill to %.1f %%", what, len(tokens), len(packs), share)
        return packs


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their paths; texts that are long as hashes."""
    leaves: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves |= _flat(value, f"{prefix}{name}.")
        else:
            is_long = isinstance(value, str) and len(value) > _SHOWN
            leaves[prefix + name] = f"{value[:_SHOWN]!r}... ({xxhash.xxh3_64_hexdigest(value)})" if is_long else value
    return leaves


def _tell(tokens: Tokens, what: str) -> None:
    """Say how many samples are cut or have nothing to learn."""
    cut, mute = int((tokens.lost > 0).sum()), int((tokens.num_trained == 0).sum())
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
