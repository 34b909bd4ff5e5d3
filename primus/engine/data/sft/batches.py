"""Samples as tensors: `Batches` makes the microbatches of a rank, one sample a row or several packed into one, in processes of
their own if there are any.

What fills a row up bears the end token and no loss; the real end token of an answer is trained, for the mask goes by place.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from primus.engine.data.loader import Batch
from primus.engine.data.samplers import PADDING
from primus.engine.data.sft.samples import Sample
from primus.engine.data.sft.shape import Shape
from primus.engine.data.workers import Made, Workers

__all__ = ["Batches"]

log = logging.getLogger(__name__)


class _Samples(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Sample: ...


class _Packs(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> Sequence[int]: ...


class Batches:
    """The microbatches of samples."""

    def __init__(
        self,
        samples: _Samples,
        packs: _Packs | None,
        shape: Shape,
        device: torch.device,
        *,
        num_workers: int = 0,
    ) -> None:
        """`packs` are the samples of each sequence, if several share one. On the CPU worker processes start here."""
        self._num_sequences = len(samples) if packs is None else len(packs)
        self._device, self._told = device, set[str]()
        self._workers = Workers(_Maker(samples, packs, shape).make, count=num_workers, device=device)

    def __len__(self) -> int:
        return self._num_sequences

    def stream(self, numbers: Callable[[], Iterator[list[int]]]) -> Iterator[Batch]:
        """Yield the microbatches of samples, or of packs, by number; what is odd about samples is said once."""
        for made in self._workers.stream(numbers):
            for kind, text in made["remarks"].items():
                if kind not in self._told:
                    self._told.add(kind)
                    log.warning("%s", text)
            moved = {name: made[name].to(self._device, non_blocking=True) for name in _TENSORS}
            yield Batch(**moved, attention_mask=None, cu_seqlens=made["ends"])


_TENSORS = ("tokens", "labels", "loss_mask", "padding", "position_ids")


class _Maker:
    """What worker processes do."""

    def __init__(self, samples: _Samples, packs: _Packs | None, shape: Shape) -> None:
        self._samples, self._packs, self._shape = samples, packs, shape

    def make(self, numbers: list[int]) -> Made:
        """Return a microbatch."""
        return self._rows(numbers) if self._packs is None else self._pack(numbers[0])

    def _rows(self, numbers: list[int]) -> Made:
        samples = [self._samples[max(number, 0)] for number in numbers]
        length = self._shape.padded(max(sample.num_inputs for sample in samples))
        rows = [_row(sample, length, self._shape.end, counts=n != PADDING) for sample, n in zip(samples, numbers, strict=True)]
        parts = [np.stack(each) for each in zip(*rows, strict=True)]
        places = np.tile(np.arange(length), (len(rows), 1))
        remarks = {kind: text for sample in samples for kind, text in sample.remarks.items()}
        return _made((*parts, places), None, remarks)

    def _pack(self, number: int) -> Made:
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
            rows.append((np.full(gap, shape.end), np.full(gap, shape.end), np.zeros(gap, np.float32), np.ones(gap, np.bool_)))
            ends.append(total)
        parts = [np.concatenate(each)[None] for each in zip(*rows, strict=True)]
        places = np.concatenate([np.arange(high - low) for low, high in pairwise(ends)])[None]
        return _made((*parts, places), tuple(ends), {})


def _made(arrays: tuple[NDArray[Any], ...], ends: tuple[int, ...] | None, remarks: dict[str, str]) -> Made:
    tensors = {name: torch.from_numpy(array) for name, array in zip(_TENSORS, arrays, strict=True)}
    return {**tensors, "ends": ends, "remarks": remarks}


def _row(
    sample: Sample, length: int, end: int, *, counts: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
    """Return inputs, labels and loss mask of a sample, filled up, and what fills it up: all of it, where it does not count."""
    gap = length - sample.num_inputs
    mask = sample.trained[1:].astype(np.float32) * np.float32(counts)
    return (
        np.pad(sample.ids[:-1], (0, gap), constant_values=end),
        np.pad(sample.ids[1:], (0, gap), constant_values=end),
        np.pad(mask, (0, gap)),
        np.arange(length) >= (sample.num_inputs if counts else 0),
    )
