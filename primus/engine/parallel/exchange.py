"""Rows for rows: each rank of a group sends others as many rows as it likes, and the gradients come back the same way.

`start` begins, `finish` waits. What is computed between the two runs beside the exchange, and so it is in the backward, whose
exchange begins at `finish` and is waited for at `start`.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from primus.engine.parallel.collectives import Works, wait
from primus.engine.parallel.lanes import Lane, Lanes
from primus.engine.parallel.mesh import Group

__all__ = ["Exchange", "exchange_counts"]


class Exchange:
    """One exchange of rows [M, ...], sorted by the rank that they go to; they arrive sorted by the rank that they come from."""

    def __init__(self, group: Group, sends: Sequence[int], receives: Sequence[int], lanes: Lanes) -> None:
        """`sends` are the rows for each rank, `receives` those from each rank; other lines of work pass by while it waits."""
        self.group, self.sends, self.receives, self._lanes = group, sends, receives, lanes
        self._works: Works = []
        self._arriving: Tensor | None = None
        self._ticket: Tensor | None = None

    def start(self, x: Tensor) -> "Exchange":
        """Send rows off."""
        self._ticket = _Start.apply(x, self)
        return self

    def finish(self) -> Tensor:
        """Return the rows that have arrived."""
        out: Tensor = _Finish.apply(self._ticket, self)
        self._ticket = None
        return out

    @property
    def reverse(self) -> "Exchange":
        """The way back."""
        return Exchange(self.group, self.receives, self.sends, self._lanes)

    @property
    def again(self) -> "Exchange":
        """The same way once more."""
        return Exchange(self.group, self.sends, self.receives, self._lanes)

    def begin(self, x: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """Send without a gradient until `end`; return nothing of any size, which stands in the graph for what is on its way."""
        self._arriving = x.new_empty(sum(receives), *x.shape[1:])
        sizes = list(receives), list(sends)
        self._works = [dist.all_to_all_single(self._arriving, x.contiguous(), *sizes, group=self.group.handle, async_op=True)]
        return x.new_empty(0)

    def end(self, lane: Lane) -> Tensor:
        """Return what has arrived since `begin`."""
        self._lanes.turn(lane)
        wait(self._works)
        assert self._arriving is not None
        arrived, self._arriving, self._works = self._arriving, None, []
        return arrived


def exchange_counts(counts_GL: Tensor, group: Group) -> Tensor:
    """Return [G, L] numbers that the ranks have for this one, given its numbers for each of them."""
    arrived = torch.empty_like(counts_GL)
    dist.all_to_all_single(arrived, counts_GL.contiguous(), group=group.handle)
    return arrived


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.begin(x, exchange.sends, exchange.receives)

    @staticmethod
    def backward(ctx: Any, ticket: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.end("backward"), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ticket: Tensor, exchange: Exchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.end("forward")

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        exchange = ctx.exchange
        return exchange.begin(dy, exchange.receives, exchange.sends), None
