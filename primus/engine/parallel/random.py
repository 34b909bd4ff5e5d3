"""`RandomStreams`: named generators, so that dropout differs or agrees between ranks as it must.

The default stream is equal on all tensor-parallel ranks, the model-parallel one differs (Megatron's seeds: seed + 100 pp, and
seed + 2718 + tp on top). `fork(name)` makes torch's own generators those of the stream for the body.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from primus.engine.parallel.layout import Coordinates

__all__ = ["RandomStreams"]


class RandomStreams:
    """The random streams of one rank on one device."""

    def __init__(self, seed: int, coordinates: Coordinates, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        base = seed + 100 * coordinates.pp
        torch.manual_seed(base)
        c = coordinates
        self._states = {
            "model-parallel": self._seeded(base + 2718 + c.tp),
            "router": self._seeded(base + 5_000_011 * (1 + c.tp + 1_009 * (c.cp + 1_009 * c.dp))),
        }
        self._counts: dict[str, int] = {}
        self.is_replaying = False
        """What runs has run before, and is computed again for its backward."""

    @contextmanager
    def fork(self, name: str | None) -> Iterator[None]:
        """Draw from the stream `name` in the body; None draws from the default stream."""
        if name is None:
            yield
            return
        outside = self._get()
        self._set(self._states[name])
        try:
            yield
        finally:
            self._states[name] = self._get()
            self._set(outside)

    def number(self, name: str) -> int:
        """Draw a whole number from a stream, for masks that are computed from one."""
        with self.fork(name):
            return int(torch.randint(2**62, ()))

    def count(self, name: str) -> int:
        """Return how often this name was counted before; a replay counts what it replays as before."""
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return number

    @contextmanager
    def replay(self, state: dict[str, Any]) -> Iterator[None]:
        """Draw and count in the body what was drawn and counted from `state` on; afterwards all goes on where it was."""
        present = self.state_dict()
        self.load_state_dict(state)
        self.is_replaying = True
        try:
            yield
        finally:
            self.load_state_dict(present)
            self.is_replaying = False

    def state_dict(self) -> dict[str, Any]:
        """Return the named streams' states and the counts; the default stream is torch's own and saved with it."""
        return {**{name: list(state) for name, state in self._states.items()}, "counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the named streams and the counts."""
        # States from before there were counts have none.
        self._counts = dict(state.get("counts", {}))
        self._states = {name: tuple(parts) for name, parts in state.items() if name != "counts"}

    def _seeded(self, seed: int) -> tuple[Tensor, ...]:
        outside = self._get()
        torch.manual_seed(seed)
        state = self._get()
        self._set(outside)
        return state

    def _get(self) -> tuple[Tensor, ...]:
        if self._device.type == "cuda":
            return torch.get_rng_state(), torch.cuda.get_rng_state(self._device)
        return (torch.get_rng_state(),)

    def _set(self, state: tuple[Tensor, ...]) -> None:
        torch.set_rng_state(state[0])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state[1], self._device)
