"""`Live` follows the memory of tensors, also of such as have none: what is in use now, and the most since a moment."""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from primus.engine.rehearsal.mode import Mode
from primus.engine.rehearsal.traffic import is_communication

__all__ = ["Live", "storage_bytes"]


class Live(Mode):
    """Follows every storage that is made on a device while it is entered, until nobody holds it any more."""

    def __init__(self, device: str = "meta") -> None:
        super().__init__()
        self._device = device
        self.now = 0
        """Bytes in use."""
        self.peak = 0
        """The most since `reset_peak`."""
        self._sizes: dict[int, int] = {}
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._held: list[int] = []

    def hold(self) -> int:
        """Take what is there now as what is held for good, though it may come and go; return its bytes."""
        self._held = list(self._storages)
        self.refresh()
        return self.now

    def reset_peak(self) -> None:
        """Begin to look for the most."""
        self.refresh()
        self.peak = self.now

    def refresh(self) -> None:
        """Notice what was resized of that which is held: sharded weights are, and no operator tells of it."""
        for key in self._held:
            known = self._storages.get(key)
            storage = None if known is None else known()
            if storage is not None:
                self._set(key, storage.nbytes())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if is_communication(func):
            # Weights come and go with their gathering.
            self.refresh()
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, Tensor) and tensor.device.type == self._device:
                self._follow(tensor.untyped_storage())
        return made

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, lambda _: self._forget(key))
        self._set(key, storage.nbytes())

    def _set(self, key: int, size: int) -> None:
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        del self._storages[key]
        self.now -= self._sizes.pop(key)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the size of the memory that tensors lie in, each counted once."""
    return sum({storage._cdata: storage.nbytes() for storage in (t.untyped_storage() for t in tensors)}.values())
