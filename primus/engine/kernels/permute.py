"""Rows of tokens in the order of the experts that they go to, and back.

N tokens, M rows (a token has one for each of its experts). On the meta device, where no map can be read, rows are taken to be
spread evenly.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Order", "add_rows", "order_rows", "permute_rows", "take_rows"]


class Order(NamedTuple):
    """Rows by expert, and in the order of the tokens within each."""

    token: Tensor
    """Whose row it is, [M]."""
    flat: Tensor
    """Where its weight lies in the flattened, transposed weights [E, N]; [M]."""
    counts: Tensor
    """Rows of each expert, [E]."""


def order_rows(map_NE: Tensor, expected_rows: int) -> Order:
    """Return the rows of a map; `expected_rows` is their number where the map has no memory."""
    N, E = map_NE.shape
    if map_NE.is_meta:
        token_M = torch.empty(expected_rows, dtype=torch.long, device="meta")
        return Order(token_M, token_M, torch.empty(E, dtype=torch.long, device="meta"))
    flat_M = map_NE.t().reshape(-1).nonzero().squeeze(1)
    return Order(flat_M % N, flat_M, map_NE.sum(0))


def take_rows(x_NH: Tensor, token_M: Tensor) -> Tensor:
    """Return the rows [M, H] of tokens; a token's gradient is the sum of its rows'."""
    return x_NH.index_select(0, token_M)


def add_rows(y_MH: Tensor, token_M: Tensor, tokens: int) -> Tensor:
    """Return for each of `tokens` the sum of its rows, [N, H]; torch's own function would keep the rows for its backward."""
    out: Tensor = _AddRows.apply(y_MH, token_M, tokens)
    return out


def permute_rows(x_MH: Tensor, order_M: Tensor) -> Tensor:
    """Return rows in another order, of which each appears once: the gradient is a permutation too."""
    out: Tensor = _Permute.apply(x_MH, order_M)
    return out


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, order_M: Tensor) -> Tensor:
        ctx.save_for_backward(order_M)
        return x_MH.index_select(0, order_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_MH: Tensor) -> tuple[Tensor, None]:
        (order_M,) = ctx.saved_tensors
        return torch.empty_like(dy_MH).index_copy_(0, order_M, dy_MH), None


class _AddRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y_MH: Tensor, token_M: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(token_M)
        return y_MH.new_zeros(tokens, *y_MH.shape[1:]).index_add_(0, token_M, y_MH)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_sums: Tensor) -> tuple[Tensor, None, None]:
        (token_M,) = ctx.saved_tensors
        return d_sums.index_select(0, token_M), None, None
