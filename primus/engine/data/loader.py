"""`build_loader`: microbatches as tensors on the run's device, made ahead by `num_workers` processes.

Workers ignore SIGTERM and SIGINT: a signal sent to the whole process group must leave them alive until the main process
has finished its iteration and saved. Each uses one thread.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from primus.engine.config import DatasetConfig
from primus.engine.data.gpt_dataset import Sample
from primus.engine.data.samplers import Sampling, cyclic, sequential

__all__ = ["Batch", "build_loader"]


class _Items(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, item: int) -> Sample: ...


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

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the copy may still be under way."""
        if device.type == "cpu":
            return self
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return _batch({name: t.to(device, non_blocking=True) for name, t in tensors.items() if t is not None})


class _Indices:
    """A batch sampler that starts anew at each iteration."""

    def __init__(self, sampling: Sampling, *, is_cyclic: bool, sharding: bool) -> None:
        self._sampling, self._is_cyclic, self._sharding = sampling, is_cyclic, sharding

    def __iter__(self) -> Iterator[list[int]]:
        return cyclic(self._sampling, sharding=self._sharding) if self._is_cyclic else sequential(self._sampling)


def build_loader(
    dataset: _Items,
    config: DatasetConfig,
    *,
    sampling: Sampling,
    device: torch.device,
    in_order: bool = False,
) -> Iterator[Batch]:
    """Return the microbatches of this rank from `sampling.consumed` on; `in_order` walks the set whatever the loader type."""
    is_cyclic = config.dataloader_type == "cyclic" and not in_order
    loader: DataLoader[Any] = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_sampler=_Indices(sampling, is_cyclic=is_cyclic, sharding=config.data_sharding),
        num_workers=config.num_workers,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        worker_init_fn=_start_worker if config.num_workers else None,
        persistent_workers=config.num_workers > 0,
        # A generator of its own: the loader draws a seed when it starts, which must not move the run's random streams.
        generator=torch.Generator().manual_seed(0),
    )
    return _batches(loader, device)


def _batches(loader: "DataLoader[Any]", device: torch.device) -> Iterator[Batch]:
    """Start the workers when the first batch is asked for, so that an evaluation that never runs costs nothing."""
    for stacked in loader:
        yield _batch(stacked).to(device)


def _collate(samples: list[Sample]) -> dict[str, Tensor]:
    """Stack samples; a dict, so that pinning finds the tensors."""
    return {name: torch.from_numpy(np.stack([sample[name] for sample in samples])) for name in samples[0]}


def _batch(stacked: dict[str, Tensor]) -> Batch:
    return Batch(
        tokens=stacked["tokens"],
        labels=stacked["labels"],
        loss_mask=stacked["loss_mask"],
        position_ids=stacked["position_ids"],
        attention_mask=stacked.get("attention_mask"),
    )


def _start_worker(_number: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
