"""`Loader`: microbatches as tensors on the run's device, made ahead by `num_workers` processes.

Workers ignore SIGTERM and SIGINT: a signal sent to the whole process group must leave them alive until the main process
has finished its iteration and saved. They end when it ends, also if it is killed. There
are never more of them than cores.

What is equal in all samples is made once and shared; for the rest, a worker sends one tensor.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from primus.cores import num_cores
from primus.engine.config import DatasetConfig
from primus.engine.data.gpt_dataset import SampleRules
from primus.engine.data.samplers import PADDING, Sampling, cyclic, sequential, whole
from primus.engine.lifeline import end_with_parent
from primus.errors import InputError

__all__ = ["Batch", "Loader"]

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


_Item = tuple[NDArray[np.int64], bool] | InputError
"""The tokens of a sample and whether it counts, or why it cannot be had."""


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


class _Texts:
    """The tokens of each sample and whether they count, as the loader's workers see a dataset."""

    def __init__(self, items: _Items) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, item: int) -> _Item:
        try:
            return self._items.text(max(item, 0)), item != PADDING
        except InputError as error:
            # Raised by the main process: what a worker raises would reach the user inside a traceback.
            return error


class _Indices:
    """A batch sampler that starts at `consumed` samples; it gives nothing as long as that is None."""

    def __init__(self, sampling: Sampling, *, in_order: bool, is_cyclic: bool, sharding: bool) -> None:
        self._sampling, self._in_order, self._is_cyclic, self._sharding = sampling, in_order, is_cyclic, sharding
        self.consumed: int | None = None

    def __iter__(self) -> Iterator[list[int]]:
        if self.consumed is None:
            return iter(())
        if self._in_order:
            return whole(self._sampling)
        if self._is_cyclic:
            return cyclic(self._sampling, self.consumed, sharding=self._sharding)
        return sequential(self._sampling, self.consumed)


class Loader:
    """The microbatches of a dataset for one rank."""

    def __init__(
        self, dataset: _Items, config: DatasetConfig, *, sampling: Sampling, device: torch.device, in_order: bool = False
    ) -> None:
        """Prepare to load; `in_order` walks the whole set from its start, whatever the loader type, again and again.

        What fills its last microbatch is masked out.

        On the CPU the workers start here, so build it before the model: a forked worker holds on to the memory of its process,
        and weights that change afterwards would take their room twice. Elsewhere they start with the first batch.
        """
        self._rules, self._device = dataset.rules, device
        is_cyclic = config.dataloader_type == "cyclic"
        self._indices = _Indices(sampling, in_order=in_order, is_cyclic=is_cyclic, sharding=config.data_sharding)
        workers = _useful_workers(config.num_workers)
        # A fork shares the index and starts in milliseconds; other ways import torch anew in each worker.
        context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else None)
        self._loader: DataLoader[Any] = DataLoader(
            _Texts(dataset),  # type: ignore[arg-type]
            batch_sampler=self._indices,
            num_workers=workers,
            collate_fn=partial(_collate, dataset.rules),
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(_start_worker, _process_end(context), os.getpid()) if workers else None,
            persistent_workers=workers > 0,
            multiprocessing_context=context if workers else None,
            # A generator of its own: the loader draws a seed when it starts, which must not move the run's random streams.
            generator=torch.Generator().manual_seed(0),
        )
        if workers and device.type == "cpu":
            self._stream()

    def batches(self, consumed: int) -> Iterator[Batch]:
        """Yield the microbatches that follow `consumed` samples of all ranks, without end."""
        constants = {name: torch.from_numpy(array).to(self._device) for name, array in self._rules.constants().items()}
        shared: dict[str, Tensor] = {}
        self._indices.consumed = consumed
        for stacked in self._stream():
            if isinstance(stacked, InputError):
                raise stacked
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

    def _stream(self) -> Iterator[dict[str, Tensor] | InputError]:
        """Start the loader, and its workers if they are not there."""
        with _signals_held():
            return iter(self._loader)


def _useful_workers(wanted: int) -> int:
    cores = num_cores()
    if wanted > cores:
        log.debug("num_workers %d: this machine has %d cores and gets as many workers", wanted, cores)
    return min(wanted, cores)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold signals back while workers start, so that none meets a worker that does not ignore it yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collate(rules: SampleRules, items: list[_Item]) -> dict[str, Tensor] | InputError:
    """Stack samples and what depends on their tokens; a dict, so that pinning finds the tensors."""
    samples = [item for item in items if not isinstance(item, InputError)]
    if len(samples) < len(items):
        return next(item for item in items if isinstance(item, InputError))
    rows: list[dict[str, NDArray[Any]]] = [{"text": text} | rules.masks(text[:-1]) for text, _ in samples]
    if not all(counts for _, counts in samples):
        mask = rules.constants()["loss_mask"]
        for row, (_, counts) in zip(rows, samples, strict=True):
            row["loss_mask"] = row.get("loss_mask", mask) * np.float32(counts)
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


def _process_end(context: Any) -> Any:
    """Return a number in shared memory that turns to 1 when this process is about to end."""
    ending = context.RawValue("b", 0)
    atexit.register(setattr, ending, "value", 1)
    return ending


def _start_worker(main_is_ending: Any, main: int, _number: int) -> None:
    # torch's own watch takes whoever is the parent when it starts, also what adopted a worker whose main process was killed.
    end_with_parent(main)

    def leave_with_main(_signal: int, _frame: FrameType | None) -> None:
        # Python ends what is left of its children with SIGTERM and waits for them.
        if main_is_ending.value:
            os._exit(0)

    signal.signal(signal.SIGTERM, leave_with_main)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
