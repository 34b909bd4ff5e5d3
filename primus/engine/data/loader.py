"""`Loader`: microbatches of documents as tensors on the run's device, made ahead by `num_workers` processes.

What is equal in all samples is made once and shared; for the rest, a worker sends one tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from primus.engine.config import DatasetConfig
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.samplers import PADDING, Sampling, cyclic, sequential, whole
from primus.engine.data.workers import Workers

__all__ = ["Batch", "Loader"]


class _Items(Protocol):
    def __len__(self) -> int: ...
    def text(self, item: int) -> NDArray[np.int64]: ...
    @property
    def rules(self) -> SampleRules: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One microbatch of this rank."""

    tokens: Tensor
    """int64 `[b, s]`."""
    labels: Tensor
    """int64 `[b, s]`."""
    loss_mask: Tensor
    """float32 `[b, s]`."""
    position_ids: Tensor
    """int64 `[b, s]`."""
    attention_mask: Tensor | None
    """bool `[b, 1, s, s]`, true = masked out; None: causal."""
    cu_seqlens: tuple[int, ...] | None = None
    """0, then where each packed sample ends, the last at s; samples do not see one another. Only with b = 1."""
    padding: Tensor | None = None
    """bool `[b, s]`, true where a token only fills the sequence up; None: nowhere."""


class Loader:
    """The microbatches of a dataset for one rank."""

    def __init__(
        self, dataset: _Items, config: DatasetConfig, *, sampling: Sampling, device: torch.device, in_order: bool = False
    ) -> None:
        """Prepare to load; `in_order` walks the whole set from its start, whatever the loader type, again and again.

        What fills its last microbatch is masked out. On the CPU the workers start here: build it before the model.
        """
        self._config, self._rules, self._device = config, dataset.rules, device
        self._sampling, self._in_order = sampling, in_order
        self._workers = Workers(partial(_made, dataset), count=config.num_workers, device=device)

    def batches(self, consumed: int) -> Iterator[Batch]:
        """Yield the microbatches that follow `consumed` samples of all ranks, without end."""
        constants = {name: torch.from_numpy(array).to(self._device) for name, array in self._rules.constants().items()}
        shared: dict[str, Tensor] = {}
        for stacked in self._workers.stream(partial(self._numbers, consumed)):
            own = {name: tensor.to(self._device, non_blocking=True) for name, tensor in stacked.items()}
            text = own.pop("text")
            if not shared or len(shared["loss_mask"]) != len(text):
                shared = {name: row.repeat(len(text), 1) for name, row in constants.items()}
            parts = shared | own
            yield Batch(
                tokens=text[:, :-1].contiguous(),
                labels=text[:, 1:].contiguous(),
                loss_mask=parts["loss_mask"],
                position_ids=parts["position_ids"],
                attention_mask=parts.get("attention_mask"),
            )

    def _numbers(self, consumed: int) -> Iterator[list[int]]:
        if self._in_order:
            return whole(self._sampling)
        if self._config.dataloader_type == "cyclic":
            return cyclic(self._sampling, consumed, sharding=self._config.data_sharding)
        return sequential(self._sampling, consumed)


def _made(dataset: _Items, numbers: list[int]) -> dict[str, Any]:
    """Stack samples and what depends on their tokens."""
    samples = [(dataset.text(max(number, 0)), number != PADDING) for number in numbers]
    rules = dataset.rules
    rows: list[dict[str, NDArray[Any]]] = [{"text": text} | rules.masks(text[:-1]) for text, _ in samples]
    if not all(counts for _, counts in samples):
        mask = rules.constants()["loss_mask"]
        for row, (_, counts) in zip(rows, samples, strict=True):
            row["loss_mask"] = row.get("loss_mask", mask) * np.float32(counts)
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}
