"""`in_turn`: rank 0 does something long first, then the others, however long it takes.

They meet through the store of their process group, not in a collective: that would end the run when an index takes longer to
build than `distributed_timeout_minutes`, and ranks would wait that long in vain for one that failed.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from primus.engine.parallel.mesh import Group
from primus.errors import RunError

__all__ = ["in_turn"]

_T = TypeVar("_T")
_FIRST, _ARRIVED, _ALL = "primus/first", "primus/arrived", "primus/all"
_LONG = timedelta(days=2)


def in_turn(build: Callable[[], _T], world: Group) -> _T:
    """Return what `build` gives on this rank; no rank leaves before all have built. RunError if it failed on another one."""
    if world.handle is None:
        return build()
    store = world.handle.get_group_store()

    def wait(key: str) -> None:
        store.wait([key], _LONG)
        failed = store.get(key).decode()
        if failed:
            raise RunError(f"rank {failed} failed to open the data; its own message says why")

    if world.index > 0:
        wait(_FIRST)
    try:
        built = build()
    except BaseException:
        for key in (_FIRST, _ALL):
            store.set(key, str(world.index))
        raise
    if world.index == 0:
        store.set(_FIRST, "")
    if store.add(_ARRIVED, 1) == world.size:
        store.set(_ALL, "")
    wait(_ALL)
    return built
