"""Which tokens make up which sample: Megatron-Core's document, sample and shuffle index, computed with numpy. No torch.

Samples are windows of `seq + 1` tokens over the shuffled documents laid end to end, each sharing one token with the next:
sample k starts at token `k * seq`. So the walk over documents is a division of their cumulated lengths.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray

__all__ = ["build_gpt_index"]


@dataclass(frozen=True, slots=True)
class GPTIndex:
    """The three arrays of a dataset."""

    documents: NDArray[np.int32]
    """Sequence ids in the order they are laid end to end."""
    samples: NDArray[np.int64] | NDArray[np.int32]
    """`[n + 1, 2]`: position in `documents` and token offset where each sample starts."""
    shuffle: NDArray[Any]
    """Sample that the i-th item is."""


def build_gpt_index(
    documents: NDArray[np.int32], lengths: NDArray[np.int32], *, seq_length: int, num_samples: int | None, seed: int
) -> GPTIndex:
    """Build the index of a split.

    `documents` are the split's sequence ids, `lengths` the tokens of every sequence of the corpus, `num_samples` how many are
    wanted at least (None: one epoch). The split must hold more than one token.
    """
    tokens = int(lengths[documents].sum(dtype=np.int64))
    assert tokens > 1, "an empty split is refused before its index is built"
    epochs = 1 if num_samples is None else max(1, -(-(num_samples * seq_length + 1) // tokens))
    separate = num_samples is not None and _is_last_epoch_separate(num_samples, epochs, tokens, seq_length)
    random = RandomState(seed)
    order = _document_order(documents, epochs, separate, random)
    total = (epochs * tokens - 1) // seq_length
    samples = _sample_starts(order, lengths, seq_length, total)
    before = ((epochs - 1) * tokens - 1) // seq_length if separate else total
    return GPTIndex(order, samples, _shuffle(before, total, random))


def _is_last_epoch_separate(num_samples: int, epochs: int, tokens: int, seq_length: int) -> bool:
    """A last epoch of which less than 80 % is used is shuffled by itself: its documents must not displace whole epochs."""
    if epochs == 1:
        return False
    before = ((epochs - 1) * tokens - 1) // seq_length
    per_epoch = (tokens - 1) // seq_length
    return num_samples - before < int(0.80 * per_epoch)


def _document_order(documents: NDArray[np.int32], epochs: int, separate: bool, random: RandomState) -> NDArray[np.int32]:
    if separate:
        parts = (_document_order(documents, n, False, random) for n in (epochs - 1, 1))
        return np.concatenate(tuple(parts))
    return _shuffled(np.tile(documents.astype(np.int32), epochs), random)


def _sample_starts(
    order: NDArray[np.int32], lengths: NDArray[np.int32], seq_length: int, total: int
) -> NDArray[np.int64] | NDArray[np.int32]:
    taken = lengths[order]
    ends = np.cumsum(taken, dtype=np.int64)
    # A document lies behind sample k if it ends at or before token k * seq_length. Starts are evenly spaced, so the first
    # such k is a division, and counting documents by it replaces a search (2 ms instead of 19 for 50M tokens).
    behind = ends + (seq_length - 1)
    behind //= seq_length
    counts = np.bincount(behind, minlength=total + 1)[: total + 1]
    small = max(len(order), int(taken.max(initial=0))) <= np.iinfo(np.int32).max
    samples = np.empty((total + 1, 2), np.int32 if small else np.int64)
    places = np.cumsum(counts, out=samples[:, 0], dtype=samples.dtype)
    # Buffers are used twice: touching fresh memory takes longer than this arithmetic.
    ends -= taken
    starts = np.take(ends, places, out=counts, mode="clip")
    offsets = np.arange(0, (total + 1) * seq_length, seq_length, dtype=np.int64)
    offsets -= starts
    samples[:, 1] = offsets
    samples[0] = 0  # also when the first documents are empty
    return samples


def _shuffle(before: int, total: int, random: RandomState) -> NDArray[Any]:
    dtype: type[np.uint32] | type[np.int64] = np.uint32 if total < np.iinfo(np.uint32).max - 1 else np.int64
    first = _shuffled(np.arange(before, dtype=dtype), random)
    if before == total:
        return first
    return np.concatenate((first, _shuffled(np.arange(before, total, dtype=dtype), random)))


def _shuffled(array: NDArray[Any], random: RandomState) -> NDArray[Any]:
    """Return the array shuffled as Megatron-Core does it."""
    # numpy swaps words of 8 bytes a third faster, as long as they fit the caches.
    words = array.astype(np.int64) if len(array) < 1 << 22 else array
    random.shuffle(words)
    return words.astype(array.dtype, copy=False)
