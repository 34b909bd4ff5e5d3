"""`GPTDataset`: the samples of one corpus and split, equal to Megatron-Core's to the token. No torch.

An item is a map of numpy arrays: `tokens`, `labels`, `position_ids` int64 `[s]`, `loss_mask` float32 `[s]`, and
`attention_mask` bool `[1, s, s]` (true = masked out) if the configuration asks for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from primus.engine.data import masks
from primus.engine.data.cache import cached_arrays
from primus.engine.data.gpt_index import build_gpt_index
from primus.errors import InputError

__all__ = ["Corpus", "GPTDataset", "Sample", "SampleRules", "check_share", "foreign_id"]

Sample = dict[str, NDArray[Any]]


class Corpus(Protocol):
    """Sequences of tokens with known lengths."""

    prefix: str
    sequence_lengths: NDArray[np.int32]

    def get(self, sequence: int, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return the tokens [start, stop) of a sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRules:
    """What makes tokens a sample."""

    seq_length: int
    seed: int
    eod: int
    vocab_size: int = 1 << 63
    """What the ids of a sample stay below."""
    eod_mask_loss: bool = False
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    with_attention_mask: bool = False

    def sample(self, text: NDArray[np.int64]) -> Sample:
        """Return the sample of `seq_length + 1` tokens."""
        tokens = text[:-1]
        return {"tokens": tokens, "labels": text[1:]} | self.constants() | self.masks(tokens)

    def constants(self) -> Sample:
        """Return what is equal for all samples, unless `masks` says otherwise."""
        return {
            "loss_mask": np.ones(self.seq_length, np.float32),
            "position_ids": np.arange(self.seq_length, dtype=np.int64),
        }

    def masks(self, tokens: NDArray[np.int64]) -> Sample:
        """Return what depends on the tokens of this sample."""
        own: Sample = {}
        if self.eod_mask_loss:
            own["loss_mask"] = masks.loss_mask(tokens, self.eod)
        if self.reset_position_ids:
            own["position_ids"] = masks.position_ids(tokens, self.eod)
        if self.with_attention_mask:
            own["attention_mask"] = masks.attention_mask(tokens, self.eod, reset=self.reset_attention_mask)
        return own


class GPTDataset:
    """At least `num_samples` samples of the documents [first, last) of a corpus; one epoch if `num_samples` is None."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        documents: tuple[int, int],
        num_samples: int | None,
        split: str,
        rules: SampleRules,
        cache: Path | None = None,
    ) -> None:
        """Build or load the index; InputError if the documents hold no sample while some are wanted."""
        self._corpus, self.rules = corpus, rules
        check_share(corpus, documents=documents, num_samples=num_samples, split=split, seq_length=rules.seq_length)
        ids = np.arange(*documents, dtype=np.int32)
        description = {
            "class": "GPTDataset",
            "dataset_path": corpus.prefix,
            "lengths": xxhash.xxh3_64_hexdigest(np.ascontiguousarray(corpus.sequence_lengths).data),
            "documents": list(documents),
            "num_samples": num_samples,
            "index_split": split,
            "random_seed": rules.seed,
            "sequence_length": rules.seq_length,
        }

        def build() -> list[NDArray[Any]]:
            # Copied out of the mapped index, where they do not lie on whole words.
            lengths = np.array(corpus.sequence_lengths)
            index = build_gpt_index(ids, lengths, seq_length=rules.seq_length, num_samples=num_samples, seed=rules.seed)
            return [index.documents, index.samples, index.shuffle]

        names = ("document_index", "sample_index", "shuffle_index")
        self.document_index, self.sample_index, self.shuffle_index = cached_arrays(
            cache, f"GPTDataset-{split}", description, names, build
        )

    def __len__(self) -> int:
        return len(self.shuffle_index)

    def __getitem__(self, item: int) -> Sample:
        """Return sample `item` in shuffled order."""
        return self.rules.sample(self.text(item))

    def text(self, item: int) -> NDArray[np.int64]:
        """Return the `seq_length + 1` tokens of a sample; InputError if one of them is no id of the vocabulary."""
        parts = [self._corpus.get(*part) for part in self._parts(item)]
        text = np.concatenate(parts).astype(np.int64)
        # Read without a sign, a negative id is larger than any other: one look finds both kinds.
        if text.view(np.uint64).max() >= self.rules.vocab_size:
            raise InputError(self._foreign(item))
        return text

    def _parts(self, item: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield document, first token and the one behind the last of what a sample is put together from."""
        k = int(self.shuffle_index[item])
        (first, offset), (last, end) = self.sample_index[k].tolist(), self.sample_index[k + 1].tolist()
        for place in range(first, last + 1):
            yield int(self.document_index[place]), offset if place == first else 0, end + 1 if place == last else None

    def _foreign(self, item: int) -> str:
        for document, start, stop in self._parts(item):
            ids = self._corpus.get(document, start, stop).astype(np.int64)
            foreign = ids[ids.view(np.uint64) >= self.rules.vocab_size]
            if len(foreign):
                return foreign_id(
                    f"document {document} of dataset {self._corpus.prefix}", int(foreign[0]), self.rules.vocab_size
                )
        raise AssertionError("a sample is what its documents hold")


def foreign_id(place: str, found: int, vocab_size: int) -> str:
    """Return what is wrong with data that another tokenizer made."""
    return (
        f"{place} holds the id {found:,d}, but the tokenizer has {vocab_size:,d} ids, from 0 on: another one made it, or it is "
        "damaged; name that tokenizer, or prepare the data again"
    )


def check_share(corpus: Corpus, *, documents: tuple[int, int], num_samples: int | None, split: str, seq_length: int) -> None:
    """Raise InputError if the documents [first, last) cannot give the samples that are asked of them."""
    first, last = documents
    tokens = int(corpus.sequence_lengths[first:last].sum(dtype=np.int64))
    if tokens < 2:
        wanted = "an epoch of" if num_samples is None else f"{num_samples:,d}"
        raise InputError(
            f"the {split} split asks for {wanted} samples, but its share of dataset {corpus.prefix} holds "
            f"{last - first} documents with {tokens} tokens; give it a larger share in `split`, or set eval_iters to 0"
        )
    if num_samples is None and tokens <= seq_length:
        raise InputError(
            f"the {split} split of dataset {corpus.prefix} holds {tokens:,d} tokens, less than one sample of "
            f"seq_length {seq_length} + 1; give it a larger share, or choose a shorter seq_length"
        )
