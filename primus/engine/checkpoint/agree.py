"""Steps that all ranks take together: what fails on one rank fails on all, with the same error.

Only errors that a user or the disk can cause travel (`PrimusError`, `OSError`); anything else is a fault of ours and ends its
rank, which takes the others along.
"""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from primus.engine.parallel.mesh import Group
from primus.errors import PrimusError

__all__ = ["everywhere", "on_first", "scatter"]

T = TypeVar("T")
Failure = PrimusError | OSError


def everywhere(group: Group, step: Callable[[], T]) -> list[T]:
    """Run `step` on every rank of the group; return all results, in order, on the first rank and [] on the others."""
    if group.size == 1:
        return [step()]
    mine, failure = _attempt(step)
    outcomes: list[tuple[T | None, Failure | None]] | None = [(None, None)] * group.size if group.index == 0 else None
    dist.gather_object((mine, failure), outcomes, dst=group.ranks[0], group=group.handle)
    first = next((error for _, error in outcomes or () if error is not None), None)
    first = _share(first, group)
    if first is not None:
        raise failure if failure is not None else first
    return [value for value, _ in outcomes or ()]  # type: ignore[misc]


def on_first(group: Group, step: Callable[[], T]) -> T:
    """Run `step` on the first rank only; every rank returns its result or raises its error."""
    if group.size == 1:
        return step()
    value, failure = _share(_attempt(step) if group.index == 0 else (None, None), group)
    if failure is not None:
        raise failure
    return value  # type: ignore[return-value]


def scatter(values: list[T], group: Group) -> T:
    """Give each rank its own of the first rank's `values`."""
    if group.size == 1:
        return values[0]
    mine: list[T | None] = [None]
    given = values if group.index == 0 else None
    dist.scatter_object_list(mine, given, src=group.ranks[0], group=group.handle)
    return mine[0]  # type: ignore[return-value]


def _attempt(step: Callable[[], T]) -> tuple[T | None, Failure | None]:
    try:
        return step(), None
    except (PrimusError, OSError) as error:
        return None, error


def _share(value: T, group: Group) -> T:
    box = [value]
    dist.broadcast_object_list(box, src=group.ranks[0], group=group.handle)
    return box[0]
