"""`check_data`: does the data that a configuration names exist, whole and fitting? Asked before anything starts. No torch."""

from collections.abc import Iterator

from primus.engine.config import ConfigContainer
from primus.engine.data.indexed import IndexedDataset
from primus.engine.data.tokenizer import build_tokenizer
from primus.errors import InputError

__all__ = ["check_data"]


def check_data(config: ConfigContainer) -> tuple[list[str], int | None]:
    """Return every problem with tokenizer and files, and the tokenizer's vocabulary size (None if it cannot be opened)."""
    problems: list[str] = []
    vocab_size = None
    try:
        vocab_size = build_tokenizer(config.tokenizer).vocab_size
    except InputError as error:
        problems += error.problems
    wanted = config.model.vocab_size
    if wanted is not None and vocab_size is not None and vocab_size > wanted:
        problems.append(
            f"the tokenizer has {vocab_size:,d} ids, the model's vocab_size is {wanted:,d}; every id needs a row: "
            f"leave vocab_size out or make it {vocab_size} or more"
        )
    for prefix in dict.fromkeys(_prefixes(config)):
        try:
            IndexedDataset(prefix)
        except InputError as error:
            problems += error.problems
    return problems, vocab_size


def _prefixes(config: ConfigContainer) -> Iterator[str]:
    d = config.dataset
    for blend in (d.blend, d.train_blend, d.valid_blend, d.test_blend):
        if blend is not None:
            yield from blend.prefixes
