"""`DeferredProducts`: weight gradients set aside in a backward, to be computed later (arXiv 2401.10241).

A weight gradient is a product of what the layer was given and of the gradient of what it made. Nobody waits for it, so a
pipeline schedule may compute it where its rank would be idle.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["DeferredProducts", "PostponedProducts"]

Product = Callable[[], None]


class DeferredProducts:
    """Products by the part of the step that they belong to."""

    def __init__(self) -> None:
        self._kept: dict[object, list[Product]] = {}
        self._open: list[Product] | None = None

    @contextmanager
    def keeping(self, key: object) -> Iterator[None]:
        """Set aside the products of the body under `key`."""
        self._open = self._kept.setdefault(key, [])
        try:
            yield
        finally:
            self._open = None

    def keep(self, product: Product) -> bool:
        """Set a product aside, if the moment asks for it; False: compute it now."""
        if self._open is None:
            return False
        self._open.append(product)
        return True

    def compute(self, key: object) -> None:
        """Compute what was set aside under `key`, in its order."""
        for product in self._kept.pop(key):
            product()

    @property
    def is_open(self) -> bool:
        """Whether products are set aside at present."""
        return self._open is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._kept


class PostponedProducts:
    """Products of one weight that wait until the backwards of the step are through."""

    def __init__(self, limit: int, otherwise: DeferredProducts) -> None:
        """Keep the first `limit` of a step, all of them if it is 0; the rest go the way of other weights, `otherwise`."""
        self._limit, self._otherwise = limit, otherwise
        self._kept: list[Product] = []

    def keep(self, product: Product) -> bool:
        """Set a product aside; False: compute it now."""
        if self._limit and len(self._kept) == self._limit:
            return self._otherwise.keep(product)
        self._kept.append(product)
        return True

    def compute(self) -> None:
        """Compute what was set aside, in its order; each lets go of its operands."""
        kept, self._kept = self._kept, []
        while kept:
            kept.pop(0)()
