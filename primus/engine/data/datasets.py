"""`build_datasets`: from a dataset configuration to the train, validation and test sets. No torch.

One source divided by `split`, or a source of its own for each split, or mock data. Each prefix of a weighted blend is
built half a percent larger than its share, and is repeated should it run out.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from primus.engine.config import Blend, DatasetConfig
from primus.engine.data.blended import BlendedDataset
from primus.engine.data.gpt_dataset import Corpus, GPTDataset, SampleRules
from primus.engine.data.indexed import IndexedDataset
from primus.engine.data.mock import MockCorpus
from primus.engine.data.splits import SPLITS, Sizes, split_bounds

__all__ = ["Datasets", "build_datasets"]

Dataset = GPTDataset | BlendedDataset
Share = tuple[int, int] | None


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
    single = len(blend.prefixes) == 1 and blend.weights is None
    total = None if blend.weights is None else sum(blend.weights)
    shares = [None] * len(blend.prefixes) if blend.weights is None else [w / total for w in blend.weights]  # type: ignore[operator]
    targets = [None if s is None or size is None else math.ceil(size * s) for s in shares]

    def build(prefix: str, target: int | None) -> GPTDataset:
        wanted = size if single else None if target is None else math.ceil(target * 1.005)
        return _indexed(config, prefix, rules, number, wanted, whole)

    with ThreadPoolExecutor(config.num_dataset_builder_threads) as pool:
        parts = list(pool.map(build, blend.prefixes, targets))
    if single:
        return parts[0]
    cache = Path(config.cache_path) if config.cache_path else None
    return BlendedDataset(
        parts, weights=blend.weights, size=_blend_size(parts, targets, size), split=SPLITS[number], cache=cache
    )


def _blend_size(parts: Sequence[GPTDataset], targets: Sequence[int | None], size: int | None) -> int | None:
    if targets[0] is not None:
        return sum(target or 0 for target in targets)
    return None if size is None else min(size, sum(map(len, parts)))


def _indexed(config: DatasetConfig, prefix: str, rules: SampleRules, number: int, size: int | None, whole: bool) -> GPTDataset:
    corpus: Corpus = IndexedDataset(prefix, mmap=config.mmap_bin_files)
    count = len(corpus.sequence_lengths)
    share: Share = (0, count) if whole else split_bounds(config.split or "1", count)[number]
    assert share is not None, "a split without share is not built"
    cache = Path(config.cache_path) if config.cache_path else Path(prefix) / "cache" / "GPTDataset_indices"
    return GPTDataset(corpus, documents=share, num_samples=size, split=SPLITS[number], rules=rules, cache=cache)
