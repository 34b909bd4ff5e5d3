"""Products x W where x, or the result, is divided along the sequence over a group; three of them overlap what they send.

    gathered_product         gather x ........ | x W
    ring_gathered_product    x0 -> x1 -> x2 ->            each piece of x is multiplied while the next one arrives
                             x0 W | x1 W | x2 W | x3 W
    scattered_product        x W | reduce-scatter ........
    ring_scattered_product   x3 W | x2 W | x1 W | x0 W    sums of what later ranks will keep travel while the next is computed
                                  ->     ->     ->
    piped_scattered_product  a W | b W | c W              rows of all ranks; each piece is reduced while the next is computed
                                 | ... | ... | ...

Tensors are [s, b, features], matrices [features in, features out]; nothing here has a gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from primus.engine.parallel.collectives import own_part, start_gather, start_reduce_scatter_, start_ring_shift, wait
from primus.engine.parallel.mesh import Group

__all__ = [
    "GatheredProduct",
    "ScatteredProduct",
    "gathered_product",
    "piped_scattered_product",
    "ring_gathered_product",
    "ring_scattered_product",
    "scattered_product",
]

GatheredProduct = Callable[[Tensor, Tensor, Tensor | None, Group], tuple[Tensor, Tensor]]
"""From a slice of x, the matrix and a bias: the whole x, and its product plus bias."""
ScatteredProduct = Callable[[Tensor, Tensor, Group], Tensor]
"""From x and the matrix: this rank's slice of the sum of the products over the ranks."""


def gathered_product(x: Tensor, matrix: Tensor, bias: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
    """Gather x, then multiply."""
    whole, gathering = start_gather(x, group)
    wait(gathering)
    return whole, _multiply(whole, matrix, bias)


def ring_gathered_product(x: Tensor, matrix: Tensor, bias: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
    """Multiply the piece in hand while it goes on to the next rank and another one arrives; t - 1 steps."""
    whole = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    product = x.new_empty((*whole.shape[:-1], matrix.shape[1]))
    pieces, products = whole.chunk(group.size), product.chunk(group.size)
    pieces[group.index].copy_(x)
    for step in range(group.size):
        here, following = ((group.index - step - i) % group.size for i in (0, 1))
        is_last = step == group.size - 1
        _, works = (x, []) if is_last else start_ring_shift(pieces[here], group, into=pieces[following])
        _multiply(pieces[here], matrix, bias, products[here])
        wait(works)
    return whole, product


def scattered_product(x: Tensor, matrix: Tensor, group: Group) -> Tensor:
    """Multiply, then reduce and scatter."""
    product = _multiply(x, matrix)
    wait(start_reduce_scatter_(product, group))
    # A copy: the slice alone would hold the whole product's memory.
    return own_part(product, group).clone()


def ring_scattered_product(x: Tensor, matrix: Tensor, group: Group) -> Tensor:
    """Compute what the ring's last rank keeps first; a sum goes on to the next rank while the following product is computed.

    The slice of rank d is summed from rank d + 1 round the ring to d itself.
    """
    pieces = x.chunk(group.size)
    total, arriving, works = x, None, list[torch.distributed.Work]()
    for step in range(group.size):
        total = _multiply(pieces[(group.index - 1 - step) % group.size], matrix)
        wait(works)
        if arriving is not None:
            total += arriving
        if step < group.size - 1:
            arriving, works = start_ring_shift(total, group)
    return total


def piped_scattered_product(x: Tensor, matrix: Tensor, group: Group, *, num_splits: int) -> Tensor:
    """Reduce and scatter each of `num_splits` pieces while the next one is computed; a piece has rows of every rank."""
    rows = x.unflatten(0, (group.size, -1))
    products, works = [], []
    for piece in rows.tensor_split(min(num_splits, rows.shape[1]), dim=1):
        products.append(_multiply(piece, matrix))
        works += start_reduce_scatter_(products[-1], group)
    wait(works)
    return torch.cat([own_part(product, group)[0] for product in products])


def _multiply(x: Tensor, matrix: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return x @ matrix + bias, written to contiguous `out` if that is given."""
    out = x.new_empty((*x.shape[:-1], matrix.shape[1])) if out is None else out
    x_TH, out_TF = x.flatten(0, -2), out.view(-1, out.shape[-1])
    if bias is None:
        torch.mm(x_TH, matrix, out=out_TF)
    else:
        torch.addmm(bias, x_TH, matrix, out=out_TF)
    return out
