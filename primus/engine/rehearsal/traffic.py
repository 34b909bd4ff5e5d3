"""`Traffic` counts what a rank exchanges with others, at the point where torch hands collectives to a process group.

It sees whatever the code above calls, on any device and with any backend, so the same count can be taken of a real run.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from primus.engine.rehearsal.mode import Mode

__all__ = ["Amount", "Call", "Traffic", "is_communication", "sent_share"]

_KINDS = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
    "barrier": "barrier",
}


@dataclass(frozen=True, slots=True)
class Call:
    """What calls have in common that are counted together."""

    ranks: tuple[int, ...]
    """Of the group."""
    phase: str
    kind: str


@dataclass(slots=True)
class Amount:
    """Calls and the size of their tensors, undivided ones of collectives that gather or scatter."""

    count: int = 0
    num_bytes: int = 0


class Traffic(Mode):
    """Counts while it is entered."""

    def __init__(self, phase: Callable[[], str]) -> None:
        """`phase` says what is going on."""
        super().__init__()
        self._phase = phase
        self.amounts: defaultdict[Call, Amount] = defaultdict(Amount)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_communication(func):
            self._add(func, args)
        return func(*args, **(kwargs or {}))

    def _add(self, func: Any, args: tuple[Any, ...]) -> None:
        _, _, name = func._schema.name.partition("::")
        tensors = [tensor for given in args for tensor in (given if isinstance(given, list) else [given])]
        largest = max((t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor)), default=0)
        amount = self.amounts[Call(_ranks(args), self._phase(), _KINDS[name])]
        amount.count += 1
        amount.num_bytes += largest


def is_communication(func: Any) -> bool:
    """Tell whether an operator of torch asks a process group for something."""
    return bool(func.namespace == "c10d")


def sent_share(kind: str, size: int) -> float:
    """Return how much of its tensor a rank sends, round a ring of `size` ranks where it is a collective."""
    if kind == "all-reduce":
        return 2 * (size - 1) / size
    if kind in ("all-gather", "reduce-scatter", "all-to-all"):
        return (size - 1) / size
    return 1.0 if kind in ("send", "broadcast") else 0.0


def _ranks(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the ranks of the group among an operator's arguments."""
    for given in args:
        if type(given).__name__ == "ScriptObject" and "ProcessGroup" in str(given._type()):
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(given)))
    raise AssertionError("a collective without a group")
