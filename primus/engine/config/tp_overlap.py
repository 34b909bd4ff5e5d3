"""Which products of the tensor-parallel linears run beside their communication; the numbers stay the same.

Only sequence parallelism has such pairs. Names are Transformer Engine's: a linear (`qkv`, `proj`, `fc1`, `fc2`) and a product
of it, `fprop` (the output), `dgrad` (the gradient of the input) or `wgrad` (that of the weight).
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["BULK", "ColumnOverlap", "Method", "ProductOverlap", "RowOverlap", "TPOverlapConfig"]

Method = Literal["ring_exchange", "pipeline", "bulk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductOverlap:
    """How communication runs beside a product."""

    method: Method
    """`ring_exchange`: in a piece for each rank that goes round a ring; `pipeline`: in pieces, each reduced as soon as it is
    computed; `bulk`: in one piece that is no part of the product."""
    num_splits: int = 1
    """Pieces of `pipeline`."""


BULK = ProductOverlap(method="bulk")


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnOverlap:
    """A linear whose input is gathered. None: communication and product take turns."""

    fprop: ProductOverlap | None = None
    """Product of the input while it is gathered: `ring_exchange`."""
    dgrad: ProductOverlap | None = BULK
    """`bulk`: while the input is gathered again for `wgrad`; else while the product itself is reduced and scattered."""
    wgrad: ProductOverlap | None = BULK
    """`bulk`: while the gradient of the input is reduced and scattered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOverlap:
    """A linear whose output is reduced and scattered. None: communication and product take turns."""

    fprop: ProductOverlap | None = None
    """Product while it is reduced and scattered: `ring_exchange` or `pipeline`."""
    dgrad: ProductOverlap | None = None
    """Product of the output's gradient while that is gathered: `ring_exchange`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TPOverlapConfig:
    """The four linears of a layer."""

    qkv: ColumnOverlap = field(default_factory=ColumnOverlap)
    """Projection to queries, keys and values."""
    proj: RowOverlap = field(default_factory=RowOverlap)
    """Projection of the attention's output."""
    fc1: ColumnOverlap = field(default_factory=ColumnOverlap)
    """First feed-forward matrix."""
    fc2: RowOverlap = field(default_factory=RowOverlap)
    """Second feed-forward matrix."""
