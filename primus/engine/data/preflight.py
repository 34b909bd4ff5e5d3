"""`check_data`: does the data that a configuration names exist, whole and fitting? Asked before anything starts. No torch."""

from collections.abc import Iterator

from primus.engine.config import Blend, ConfigContainer
from primus.engine.config.split import SPLITS
from primus.engine.data.gpt_dataset import check_share, foreign_id
from primus.engine.data.indexed import IndexedDataset
from primus.engine.data.sft.preflight import check_rows
from primus.engine.data.splits import split_bounds, split_sizes
from primus.engine.data.tokenizer import build_tokenizer
from primus.errors import InputError

__all__ = ["check_data"]

_PROBED_TOKENS = 1 << 20
"""Tokens at the start of a file whose ids are compared with the vocabulary."""


def check_data(config: ConfigContainer) -> tuple[list[str], int | None]:
    """Return every problem with tokenizer and files, and the tokenizer's vocabulary size (None if it cannot be opened)."""
    problems: list[str] = []
    vocab_size = tokenizer = None
    try:
        tokenizer = build_tokenizer(config.tokenizer)
        vocab_size = tokenizer.vocab_size
    except InputError as error:
        problems += error.problems
    wanted = config.model.vocab_size
    if wanted is not None and vocab_size is not None and vocab_size > wanted:
        problems.append(
            f"the tokenizer has {vocab_size:,d} ids, the model's vocab_size is {wanted:,d}; every id needs a row: "
            f"leave vocab_size out or make it {vocab_size} or more"
        )
    rows = config.dataset.sft
    if rows is not None:
        # Numbers stand in for a tokenizer that is not on this machine, and cannot read rows.
        return problems + check_rows(config, rows, None if config.tokenizer.type == "NullTokenizer" else tokenizer), vocab_size
    corpora: dict[str, IndexedDataset] = {}
    for prefix in dict.fromkeys(prefix for blend in _blends(config) if blend for prefix in blend.prefixes):
        try:
            corpora[prefix] = IndexedDataset(prefix)
        except InputError as error:
            problems += error.problems
    if vocab_size is not None:
        problems += [text for corpus in corpora.values() for text in _foreign_ids(corpus, vocab_size)]
    return problems + list(_empty_shares(config, corpora)), vocab_size


def _blends(config: ConfigContainer) -> tuple[Blend | None, ...]:
    """Return the source of train, validation and test."""
    data = config.dataset
    return (data.blend,) * 3 if data.blend else (data.train_blend, data.valid_blend, data.test_blend)


def _foreign_ids(corpus: IndexedDataset, vocab_size: int) -> Iterator[str]:
    """Find data that another tokenizer made before a run meets it in the middle, where each sample is looked at."""
    ids = corpus.head(_PROBED_TOKENS)
    if not len(ids):
        return
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocab_size:
        yield foreign_id(f"dataset {corpus.prefix}", lowest if lowest < 0 else highest, vocab_size)


def _empty_shares(config: ConfigContainer, corpora: dict[str, IndexedDataset]) -> Iterator[str]:
    sizes = split_sizes(config.train)
    for number, (blend, wanted) in enumerate(zip(_blends(config), (sizes.train, sizes.valid, sizes.test), strict=True)):
        if blend is None or wanted == 0:
            continue
        several = len(blend.prefixes) > 1 and blend.weights is None
        for prefix, weight in zip(blend.prefixes, blend.weights or [1.0] * len(blend.prefixes), strict=True):
            if prefix in corpora and weight > 0:
                yield from _empty_share(config, corpora[prefix], number, None if several else wanted)


def _empty_share(config: ConfigContainer, corpus: IndexedDataset, number: int, wanted: int | None) -> Iterator[str]:
    divided = config.dataset.blend is not None
    documents = split_bounds(config.dataset.split or "1", len(corpus))[number] if divided else (0, len(corpus))
    if documents is None:
        return
    try:
        check_share(corpus, documents=documents, num_samples=wanted, split=SPLITS[number], seq_length=config.model.seq_length)
    except InputError as error:
        yield from error.problems
