"""`build_datasets`: from a dataset configuration to the train, validation and test sets. No torch.

One source divided by `split`, or a source of its own for each split, or mock data. Each prefix of a weighted blend is
built half a percent larger than its share, and is repeated should it run out. A blend without weights takes every prefix by its
size, whole epochs of it if one is not enough.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from primus.engine.config import Blend, DatasetConfig
from primus.engine.config.split import SPLITS
from primus.engine.data.blended import BlendedDataset, normalised
from primus.engine.data.gpt_dataset import Corpus, GPTDataset, SampleRules
from primus.engine.data.indexed import IndexedDataset
from primus.engine.data.mock import MockCorpus
from primus.engine.data.splits import Sizes, split_bounds

__all__ = ["Datasets", "build_datasets"]

Dataset = GPTDataset | BlendedDataset
Share = tuple[int, int] | None

_SURPLUS = 1.005
"""What a part of a weighted blend is built larger than its share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Datasets:
    """What a run draws from; None where a split has no source or nothing is wanted of it."""

    train: Dataset | None
    valid: tuple[Dataset, ...]
    """One, or with `multiple_validation_sets` one a prefix."""
    test: Dataset | None


def build_datasets(
    config: DatasetConfig,
    *,
    rules: SampleRules,
    vocab_size: int,
    sizes: Sizes,
    multiple_validation_sets: bool = False,
) -> Datasets:
    """Build what `sizes` asks for; InputError if a split is asked for samples and holds none."""
    rules = replace(rules, vocab_size=vocab_size)
    wanted = {"train": sizes.train, "valid": sizes.valid, "test": sizes.test}
    sets: dict[str, tuple[Dataset, ...]] = {}
    for number, name in enumerate(SPLITS):
        size = wanted[name]
        blend, whole = _source(config, name)
        several = multiple_validation_sets and name == "valid"
        if size == 0 or (blend is None and not config.mock_data):
            sets[name] = ()
        elif config.mock_data:
            sets[name] = (_mock(rules, vocab_size, number, size),)
        elif several:
            assert blend is not None
            sets[name] = tuple(_blend(config, Blend(prefixes=(p,)), rules, number, size, whole) for p in blend.prefixes)
        else:
            assert blend is not None
            share = _shares_exist(config, number, whole)
            sets[name] = (_blend(config, blend, rules, number, size, whole),) if share else ()
    (train,), (test,) = (sets[name] or (None,) for name in ("train", "test"))
    return Datasets(train=train, valid=sets["valid"], test=test)


def _source(config: DatasetConfig, split: str) -> tuple[Blend | None, bool]:
    """Return a split's blend, and whether all of it is the split's own."""
    own = {"train": config.train_blend, "valid": config.valid_blend, "test": config.test_blend}[split]
    return (config.blend, False) if config.blend is not None else (own, True)


def _shares_exist(config: DatasetConfig, number: int, whole: bool) -> bool:
    return whole or split_bounds(config.split or "1", 1 << 30)[number] is not None


def _mock(rules: SampleRules, vocab_size: int, number: int, size: int | None) -> GPTDataset:
    corpus = MockCorpus(vocab_size=vocab_size, eod=rules.eod)
    share = split_bounds("1,1,1", len(corpus.sequence_lengths))[number]
    assert share is not None
    return GPTDataset(corpus, documents=share, num_samples=size, split=SPLITS[number], rules=rules)


def _blend(config: DatasetConfig, blend: Blend, rules: SampleRules, number: int, size: int | None, whole: bool) -> Dataset:
    # An only prefix needs no weight; one that `split` divides into sets of a size keeps its surplus, as in Megatron-Core.
    if len(blend.prefixes) == 1 and (whole or blend.weights is None or size is None):
        return _indexed(config, blend.prefixes[0], rules, number, size, whole)
    cache = Path(config.cache_path) if config.cache_path else None
    if blend.weights is None:
        parts = _parts(config, blend.prefixes, [None] * len(blend.prefixes), rules, number, whole)
        lengths = [len(part) for part in parts]
        if size is None or size <= sum(lengths):
            return BlendedDataset(parts, weights=None, size=size, split=SPLITS[number], cache=cache)
        blend = Blend(prefixes=blend.prefixes, weights=tuple(map(float, lengths)))
    assert size is not None, "the front door refuses weights where the size is open"
    kept = [pair for pair in zip(blend.prefixes, normalised(blend.weights or ()), strict=True) if pair[1] > 0]
    prefixes, weights = [prefix for prefix, _ in kept], [float(weight) for _, weight in kept]
    targets = [math.ceil(size * weight) for weight in weights]
    parts = _parts(config, prefixes, [math.ceil(target * _SURPLUS) for target in targets], rules, number, whole)
    return BlendedDataset(parts, weights=weights, size=sum(targets), split=SPLITS[number], cache=cache)


def _parts(
    config: DatasetConfig, prefixes: Sequence[str], sizes: Sequence[int | None], rules: SampleRules, number: int, whole: bool
) -> list[GPTDataset]:
    def build(prefix: str, size: int | None) -> GPTDataset:
        return _indexed(config, prefix, rules, number, size, whole)

    with ThreadPoolExecutor(config.num_dataset_builder_threads) as pool:
        return list(pool.map(build, prefixes, sizes))


def _indexed(config: DatasetConfig, prefix: str, rules: SampleRules, number: int, size: int | None, whole: bool) -> GPTDataset:
    corpus: Corpus = IndexedDataset(prefix, mmap=config.mmap_bin_files)
    count = len(corpus.sequence_lengths)
    share: Share = (0, count) if whole else split_bounds(config.split or "1", count)[number]
    assert share is not None, "a split without share is not built"
    cache = Path(config.cache_path) if config.cache_path else Path(prefix) / "cache" / "GPTDataset_indices"
    return GPTDataset(corpus, documents=share, num_samples=size, split=SPLITS[number], rules=rules, cache=cache)
