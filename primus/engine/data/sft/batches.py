"""Samples as tensors: `Batches` makes the microbatches of a rank, one sample a row or several packed into one.

What fills a row up bears the end token and no loss; the real end token of an answer is trained, for the mask goes by place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from primus.engine.data.loader import Batch
from primus.engine.data.samplers import PADDING
from primus.engine.data.sft.samples import Sample, Samples

__all__ = ["Batches", "Shape"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How long sequences are."""

    seq_length: int
    """At most so many tokens."""
    multiple: int
    """Sequences are filled up to a multiple."""
    segment_multiple: int
    """Packed samples too."""
    is_fixed: bool
    """Every sequence is filled up to `seq_length`."""
    end: int
    """The token that fills up."""

    def padded(self, length: int) -> int:
        """Return the length of a sequence with so many tokens."""
        return self.seq_length if self.is_fixed else min(self.seq_length, -(-length // self.multiple) * self.multiple)


class Batches:
    """The microbatches of samples."""

    def __init__(self, samples: Samples, packs: Sequence[Sequence[int]] | None, shape: Shape, device: torch.device) -> None:
        """`packs` are the samples of each sequence, if several share one."""
        self._samples, self._packs, self._shape, self._device = samples, packs, shape, device

    def __len__(self) -> int:
        return len(self._samples) if self._packs is None else len(self._packs)

    def stream(self, numbers: Iterator[list[int]]) -> Iterator[Batch]:
        """Yield the microbatches of samples, or of packs, by number."""
        for chosen in numbers:
            yield self._rows(chosen) if self._packs is None else self._pack(chosen[0])

    def _rows(self, numbers: list[int]) -> Batch:
        samples = [self._samples[max(number, 0)] for number in numbers]
        length = self._shape.padded(max(sample.num_inputs for sample in samples))
        rows = [_row(sample, length, self._shape.end, counts=n != PADDING) for sample, n in zip(samples, numbers, strict=True)]
        tokens, labels, mask = (np.stack(parts) for parts in zip(*rows, strict=True))
        return self._batch(tokens, labels, mask, np.tile(np.arange(length), (len(rows), 1)), None)

    def _pack(self, number: int) -> Batch:
        """Return the samples of a pack one behind the other; places are counted from 0, and what fills up is one."""
        assert self._packs is not None
        shape, rows, ends = self._shape, [], [0]
        for sample in (self._samples[each] for each in self._packs[max(number, 0)]):
            length = -(-sample.num_inputs // shape.segment_multiple) * shape.segment_multiple
            rows.append(_row(sample, length, shape.end, counts=number != PADDING))
            ends.append(ends[-1] + length)
        total = shape.padded(ends[-1])
        if total > ends[-1]:
            gap = total - ends[-1]
            rows.append((np.full(gap, shape.end), np.full(gap, shape.end), np.zeros(gap, np.float32)))
            ends.append(total)
        tokens, labels, mask = (np.concatenate(parts)[None] for parts in zip(*rows, strict=True))
        places = np.concatenate([np.arange(high - low) for low, high in pairwise(ends)])[None]
        return self._batch(tokens, labels, mask, places, tuple(ends))

    def _batch(
        self,
        tokens: NDArray[np.int64],
        labels: NDArray[np.int64],
        mask: NDArray[np.float32],
        places: NDArray[np.int64],
        ends: tuple[int, ...] | None,
    ) -> Batch:
        def moved(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(self._device, non_blocking=True)

        return Batch(
            tokens=moved(tokens),
            labels=moved(labels),
            loss_mask=moved(mask),
            position_ids=moved(places),
            attention_mask=None,
            cu_seqlens=ends,
        )


def _row(
    sample: Sample, length: int, end: int, *, counts: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return inputs, labels and loss mask of a sample, filled up."""
    gap = length - sample.num_inputs
    mask = sample.trained[1:].astype(np.float32) * np.float32(counts)
    return (
        np.pad(sample.ids[:-1], (0, gap), constant_values=end),
        np.pad(sample.ids[1:], (0, gap), constant_values=end),
        np.pad(mask, (0, gap)),
    )
