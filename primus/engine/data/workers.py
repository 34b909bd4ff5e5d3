"""`Workers`: microbatches made ahead by other processes.

Workers ignore SIGTERM and SIGINT: a signal sent to the whole process group must leave them alive until the main process
has finished its iteration and saved. They end when it ends, also if it is killed. There
are never more of them than cores.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from primus.cores import num_cores
from primus.engine.lifeline import end_with_parent
from primus.engine.signals import signals_held
from primus.errors import InputError

__all__ = ["Made", "Workers"]

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

Made = dict[str, Any]
"""Tensors and plain values of a microbatch; a dict, so that pinning finds the tensors."""


class _Microbatches:
    """A dataset whose items are whole microbatches."""

    def __init__(self, make: Callable[[list[int]], Made]) -> None:
        self._make = make

    def __getitem__(self, numbers: list[int]) -> Made | InputError:
        try:
            return self._make(numbers)
        except InputError as error:
            # Raised by the main process: what a worker raises would reach the user inside a traceback.
            return error


class _Numbers:
    """Numbers of the samples of each microbatch; none as long as no stream is asked for."""

    def __init__(self) -> None:
        self.source: Callable[[], Iterator[list[int]]] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return iter(()) if self.source is None else self.source()


class Workers:
    """Makes microbatches from the numbers of their samples, ahead and in order."""

    def __init__(self, make: Callable[[list[int]], Made], *, count: int, device: torch.device) -> None:
        """Prepare `count` processes; with 0 this one makes each microbatch when it is asked for.

        On the CPU they start here, so build it before the model: a forked worker holds on to the memory of its process,
        and weights that change afterwards would take their room twice. Elsewhere they start with the first microbatch.
        """
        self._numbers = _Numbers()
        count = _useful_workers(count)
        # A fork shares the index and starts in milliseconds; other ways import torch anew in each worker.
        context = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else None)
        self._loader: DataLoader[Any] = DataLoader(
            _Microbatches(make),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._numbers,
            num_workers=count,
            collate_fn=_as_it_is,  # type: ignore[arg-type]
            pin_memory=device.type == "cuda",
            worker_init_fn=partial(_start_worker, _process_end(context), os.getpid()) if count else None,
            persistent_workers=count > 0,
            multiprocessing_context=context if count else None,
            # A generator of its own: the loader draws a seed when it starts, which must not move the run's random streams.
            generator=torch.Generator().manual_seed(0),
        )
        if count and device.type == "cpu":
            self._start()

    def stream(self, numbers: Callable[[], Iterator[list[int]]]) -> Iterator[Made]:
        """Yield the microbatches of these numbers; InputError if one cannot be made. A second stream ends the first."""
        for made in self._start(numbers):
            if isinstance(made, InputError):
                break
            yield made
        else:
            return
        # The processes end here: a traceback would keep them.
        self._loader._iterator = None
        raise made

    def _start(self, numbers: Callable[[], Iterator[list[int]]] | None = None) -> Iterator[Made | InputError]:
        """Start the loader on these numbers, and its workers if they are not there."""
        self._numbers.source = numbers
        try:
            # So that none meets a worker that does not ignore it yet.
            with signals_held(*_SIGNALS):
                return iter(self._loader)
        finally:
            # Whoever asks may own these workers: a ring of references would keep the processes until a collector finds them,
            # and then torch waits five seconds for each.
            self._numbers.source = None


def _as_it_is(made: Made | InputError) -> Made | InputError:
    return made


def _useful_workers(wanted: int) -> int:
    cores = num_cores()
    if wanted > cores:
        log.debug("num_workers %d: this machine has %d cores and gets as many workers", wanted, cores)
    return min(wanted, cores)


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
