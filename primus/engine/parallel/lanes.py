"""`Lanes`: a backward and the forward of the next microbatch as two lines of work that take turns.

Where one would wait for tokens that travel between ranks, the other works. Turns follow from the lines alone, so all ranks
start their collectives in one order, and the numbers are those of one line after the other.

    backward  B B B . . . B B B . . .        . each: its exchange is under way
    forward   . . . F F F . . . F F F
"""

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

import torch

__all__ = ["Lane", "Lanes"]

T = TypeVar("T")
Lane = Literal["backward", "forward"]


class Lanes:
    """Of one rank; who waits calls `turn`, which does nothing while there is one line only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: dict[Lane, threading.Semaphore] = {}
        """Lines that have not ended, with what wakes them."""

    def beside(self, backward: Callable[[], object], forward: Callable[[], T]) -> T:
        """Run both, the backward first; return what the forward made, or raise what either raised."""
        wake: dict[Lane, threading.Semaphore] = {"backward": threading.Semaphore(0), "forward": threading.Semaphore(0)}
        self._open = dict(wake)
        made: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            wake["forward"].acquire()
            try:
                if self._device.type == "cuda":
                    torch.cuda.set_device(self._device)  # threads start on the first device
                made.append(forward())
            except BaseException as error:  # noqa: BLE001 - the other thread raises it
                failed.append(error)
            finally:
                del self._open["forward"]
                wake["backward"].release()

        thread = threading.Thread(target=run, name="forward")
        thread.start()
        try:
            backward()
        finally:
            del self._open["backward"]
            wake["forward"].release()
            thread.join()
            self._open = {}
        if failed:
            raise failed[0]
        return made[0]

    def turn(self, lane: Lane) -> None:
        """Let the other line work until it waits or ends."""
        other: Lane = "forward" if lane == "backward" else "backward"
        if lane in self._open and other in self._open:
            own = self._open[lane]
            self._open[other].release()
            own.acquire()
