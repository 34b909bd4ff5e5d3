"""How linears whose sequence is divided talk to their group: forms chosen once, by the builder, for each linear.

`column_form` and `row_form` turn what the configuration says of a linear into its form. All forms give the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from primus.engine.config.tp_overlap import ColumnOverlap, ProductOverlap, RowOverlap
from primus.engine.parallel.collectives import Works, own_part, start_gather, start_reduce_scatter_, wait
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.products import (
    GatheredProduct,
    ScatteredProduct,
    gathered_product,
    piped_scattered_product,
    ring_gathered_product,
    ring_scattered_product,
    scattered_product,
)

__all__ = ["ColumnForm", "RowForm", "column_form", "row_form"]

Started = tuple[Tensor, Works]
"""Where a result arrives, and what has to be waited for before it is read."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """A linear that gathers its input and scatters the gradient of it."""

    fprop: GatheredProduct
    """y = x W^T + b, from this rank's slice of x."""
    gather: Callable[[Tensor, Group], Started]
    """The whole x again, for the gradient of the weight."""
    dgrad: Callable[[Tensor, Tensor, Group], Started]
    """This rank's slice of dx = dy W, summed over the ranks."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """A linear that scatters its output and gathers the gradient of it."""

    fprop: ScatteredProduct
    """This rank's slice of y = x W^T, summed over the ranks."""
    dgrad: GatheredProduct
    """The whole dy from this rank's slice, and dx = dy W."""


def column_form(overlap: ColumnOverlap) -> ColumnForm:
    """Return the form of a linear whose input is gathered."""
    dgrad = partial(_whole_dgrad, settles=overlap.wgrad is None)
    if overlap.dgrad is not None and overlap.dgrad.method != "bulk":
        dgrad = partial(_divided_dgrad, _scattered(overlap.dgrad))
    return ColumnForm(_gathered(overlap.fprop), start_gather if overlap.dgrad else _settled_gather, dgrad)


def row_form(overlap: RowOverlap) -> RowForm:
    """Return the form of a linear whose output is scattered."""
    return RowForm(_scattered(overlap.fprop), _gathered(overlap.dgrad))


def _gathered(overlap: ProductOverlap | None) -> GatheredProduct:
    return gathered_product if overlap is None else ring_gathered_product


def _scattered(overlap: ProductOverlap | None) -> ScatteredProduct:
    if overlap is None:
        return scattered_product
    if overlap.method == "ring_exchange":
        return ring_scattered_product
    return partial(piped_scattered_product, num_splits=overlap.num_splits)


def _settled_gather(x: Tensor, group: Group) -> Started:
    whole, works = start_gather(x, group)
    wait(works)
    return whole, []


def _whole_dgrad(dy: Tensor, weight: Tensor, group: Group, *, settles: bool) -> Started:
    """Start to reduce and scatter all of dx; `settles`: and wait."""
    dx = (dy.flatten(0, -2) @ weight).view(*dy.shape[:-1], -1)
    works = start_reduce_scatter_(dx, group)
    if settles:
        wait(works)
        works = []
    return own_part(dx, group), works


def _divided_dgrad(product: ScatteredProduct, dy: Tensor, weight: Tensor, group: Group) -> Started:
    return product(dy, weight, group), []
