"""How tokens reach the ranks of their experts, and come back as sums. All ways compute the same.

Dispatch   experts are all here
Gather     every rank gets all tokens and takes those of its experts; sums of all are scattered
Exchange   every rank sends a row for each of a token's experts, and gets it back
Once       every rank sends a token once to each rank that has experts of it, and gets the sum of these experts back

The group is the ranks that hold one copy of the layer's experts: `etp` neighbours share each expert's matrices, get the same
rows and give back parts of sums, so that adding rows up completes them.
"""

from abc import ABC, abstractmethod
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from primus.engine.kernels.permute import Order, add_rows, order_rows, permute_rows, take_rows
from primus.engine.parallel.collectives import gather_sequence, reduce_scatter_sequence
from primus.engine.parallel.exchange import Exchange, exchange_counts
from primus.engine.parallel.lanes import Lanes
from primus.engine.parallel.mesh import Group, Part

__all__ = ["Dispatch", "DispatchByExchange", "DispatchByGather", "DispatchOnce", "Journey", "Rows"]


class Rows(NamedTuple):
    """What a rank's experts work on."""

    x: Tensor
    """Sorted by expert, [M, H]."""
    weights: Tensor
    """[M]."""
    counts: list[int]
    """Rows of each expert."""


class Journey(ABC):
    """Tokens of one forward, on their way."""

    @abstractmethod
    def arrive(self) -> Rows:
        """Wait for what was sent."""

    @abstractmethod
    def carry(self, values_N: Tensor) -> Tensor:
        """Return, once rows have arrived, what their tokens have of these values, [M]; no gradient passes."""

    @abstractmethod
    def back(self, y_MH: Tensor) -> Tensor:
        """Return the sums [N, H] of the outputs of each token's experts."""


class Dispatch:
    """For ranks that hold all experts."""

    def __init__(self, topk: int) -> None:
        self.topk = topk

    def __call__(self, x_NH: Tensor, weights_NE: Tensor, map_NE: Tensor) -> Journey:
        """Send tokens off to their experts."""
        return _Here(x_NH, weights_NE, map_NE, expected_rows=len(x_NH) * self.topk)


class DispatchByGather(Dispatch):
    """All-gather of tokens, reduce-scatter of sums."""

    def __init__(self, topk: int, group: Group, ep: Part) -> None:
        super().__init__(topk)
        self.group, self.ep = group, ep

    def __call__(self, x_NH: Tensor, weights_NE: Tensor, map_NE: Tensor) -> Journey:
        size = map_NE.shape[1] // self.ep.size
        own = slice(self.ep.index * size, (self.ep.index + 1) * size)
        x, weights = (gather_sequence(each, self.group) for each in (x_NH, weights_NE))
        everyones_map = gather_sequence(map_NE.to(torch.uint8), self.group).bool()
        here = _Here(x, weights[:, own], everyones_map[:, own], expected_rows=len(x) * self.topk // self.ep.size)
        return _Gathered(here, self.group)


class DispatchByExchange(Dispatch):
    """All-to-all of rows, one for each expert of a token."""

    def __init__(self, topk: int, group: Group, ep: Part, etp: Part, lanes: Lanes) -> None:
        super().__init__(topk)
        self.group, self.ep, self.etp, self.lanes = group, ep, etp, lanes

    def __call__(self, x_NH: Tensor, weights_NE: Tensor, map_NE: Tensor) -> Journey:
        order = order_rows(map_NE, len(x_NH) * self.topk)
        counts = _Counts.of(order.counts, self.group, self.ep, self.etp, len(order.token))
        rows_M = order.flat
        if self.etp.size > 1:
            # Each rank that shares an expert's matrices gets its rows.
            rows_M = torch.cat([part for part in rows_M.split(counts.for_expert_ranks) for _ in range(self.etp.size)])
        token_M = rows_M % len(x_NH) if not rows_M.is_meta else rows_M
        x = counts.exchange(self.group, self.lanes).start(take_rows(x_NH, token_M))
        weights = counts.exchange(self.group, self.lanes).start(weights_NE.t().reshape(-1, 1).index_select(0, rows_M))
        return _Exchanged(x, weights, token_M, len(x_NH), counts.received)


class DispatchOnce(Dispatch):
    """All-to-all of tokens, each once for every rank that holds experts of it (what DeepEP does: arXiv 2412.19437, 3.2)."""

    def __init__(self, topk: int, group: Group, ep: Part, etp: Part, lanes: Lanes) -> None:
        super().__init__(topk)
        self.group, self.ep, self.etp, self.lanes = group, ep, etp, lanes

    def __call__(self, x_NH: Tensor, weights_NE: Tensor, map_NE: Tensor) -> Journey:
        N, E = map_NE.shape
        goes_NR = map_NE.view(N, self.ep.size, -1).any(-1).repeat_interleave(self.etp.size, dim=1)
        order = order_rows(goes_NR, round(N * _ranks_of_token(E, self.topk, self.ep.size)) * self.etp.size)
        counts = _Counts.of_ranks(order.counts, self.group, len(order.token))
        rank_M = order.flat.div(N, rounding_mode="floor").div(self.etp.size, rounding_mode="floor")
        x = counts.exchange(self.group, self.lanes).start(take_rows(x_NH, order.token))
        weights_ML = weights_NE.unflatten(1, (self.ep.size, -1))[order.token, rank_M]
        map_ML = map_NE.view(N, self.ep.size, -1)[order.token, rank_M]
        weights, goes = (counts.exchange(self.group, self.lanes).start(each) for each in (weights_ML, map_ML.to(torch.uint8)))
        return _Once(x, weights, goes, order, N, expected_rows=N * self.topk * self.etp.size)


class _Counts(NamedTuple):
    """How many rows go where."""

    sends: list[int]
    receives: list[int]
    for_expert_ranks: list[int]
    """Of this rank's rows, those for each block of experts."""
    received: list[list[int]]
    """From each rank, for each of this rank's experts."""

    def exchange(self, group: Group, lanes: Lanes) -> Exchange:
        """Return an exchange of so many rows."""
        return Exchange(group, self.sends, self.receives, lanes)

    @classmethod
    def of(cls, counts_E: Tensor, group: Group, ep: Part, etp: Part, rows: int) -> "_Counts":
        """Learn from the others what comes; where nothing can be read, rows are even."""
        if counts_E.is_meta:
            blocks = _even(rows, ep.size)
            own = blocks[ep.index]
            received = [_even(own, len(counts_E) // ep.size)] * group.size
            return cls([block for block in blocks for _ in range(etp.size)], [own] * group.size, blocks, received)
        sent_GL = counts_E.view(ep.size, -1).repeat_interleave(etp.size, dim=0)
        sends_G, received_GL = sent_GL.sum(1), exchange_counts(sent_GL, group)
        # One transfer to the host.
        numbers = torch.cat([sends_G.unsqueeze(1), received_GL], dim=1).tolist()
        received = [row[1:] for row in numbers]
        sends = [row[0] for row in numbers]
        return cls(sends, [sum(row) for row in received], sends[:: etp.size], received)

    @classmethod
    def of_ranks(cls, counts_G: Tensor, group: Group, rows: int) -> "_Counts":
        """Learn what comes from each rank."""
        if counts_G.is_meta:
            even = _even(rows, group.size)
            return cls(even, [even[group.index]] * group.size, even, [])
        both = torch.stack([counts_G, exchange_counts(counts_G.unsqueeze(1), group).squeeze(1)]).tolist()
        return cls(both[0], both[1], both[0], [])


class _Here(Journey):
    def __init__(self, x_NH: Tensor, weights_NE: Tensor, map_NE: Tensor, *, expected_rows: int) -> None:
        self.x_NH, self.weights_NE = x_NH, weights_NE
        self.order = order_rows(map_NE, expected_rows)

    def arrive(self) -> Rows:
        order, E = self.order, self.weights_NE.shape[1]
        weights_M = self.weights_NE.t().reshape(-1).index_select(0, order.flat)
        is_meta = order.counts.is_meta
        counts = _even(len(order.token), E) if is_meta else order.counts.tolist()
        return Rows(take_rows(self.x_NH, order.token), weights_M, counts)

    def carry(self, values_N: Tensor) -> Tensor:
        return values_N.index_select(0, self.order.token)

    def back(self, y_MH: Tensor) -> Tensor:
        return add_rows(y_MH, self.order.token, len(self.x_NH))


class _Gathered(Journey):
    def __init__(self, here: _Here, group: Group) -> None:
        self.here, self.group = here, group

    def arrive(self) -> Rows:
        return self.here.arrive()

    def carry(self, values_N: Tensor) -> Tensor:
        return self.here.carry(gather_sequence(values_N, self.group))

    def back(self, y_MH: Tensor) -> Tensor:
        return reduce_scatter_sequence(self.here.back(y_MH), self.group)


class _Exchanged(Journey):
    def __init__(self, x: Exchange, weights: Exchange, token_M: Tensor, tokens: int, received: list[list[int]]) -> None:
        self.x, self.weights, self.token_M, self.tokens = x, weights, token_M, tokens
        self.counts = [sum(column) for column in zip(*received, strict=True)]
        self.order_M = _by_expert(received, token_M.device)

    def arrive(self) -> Rows:
        x_MH, weights_M1 = self.x.finish(), self.weights.finish()
        if self.order_M is not None:
            x_MH, weights_M1 = permute_rows(x_MH, self.order_M), permute_rows(weights_M1, self.order_M)
        return Rows(x_MH, weights_M1.squeeze(1), self.counts)

    def carry(self, values_N: Tensor) -> Tensor:
        values_M = self.x.again.start(values_N.index_select(0, self.token_M)).finish()
        return values_M if self.order_M is None else values_M.index_select(0, self.order_M)

    def back(self, y_MH: Tensor) -> Tensor:
        if self.order_M is not None:
            numbers_M = torch.arange(len(self.order_M), device=self.order_M.device)
            y_MH = permute_rows(y_MH, torch.empty_like(self.order_M).scatter_(0, self.order_M, numbers_M))
        return add_rows(self.x.reverse.start(y_MH).finish(), self.token_M, self.tokens)


class _Once(Journey):
    def __init__(
        self, x: Exchange, weights: Exchange, goes: Exchange, order: Order, tokens: int, *, expected_rows: int
    ) -> None:
        self.x, self.weights, self.goes = x, weights, goes
        self.order, self.tokens, self.expected_rows = order, tokens, expected_rows

    def arrive(self) -> Rows:
        x_RH, weights_RL, goes_RL = self.x.finish(), self.weights.finish(), self.goes.finish().bool()
        self.here = _Here(x_RH, weights_RL, goes_RL, expected_rows=self.expected_rows)
        return self.here.arrive()

    def carry(self, values_N: Tensor) -> Tensor:
        return self.here.carry(self.x.again.start(values_N.index_select(0, self.order.token)).finish())

    def back(self, y_MH: Tensor) -> Tensor:
        return add_rows(self.x.reverse.start(self.here.back(y_MH)).finish(), self.order.token, self.tokens)


def _by_expert(received: list[list[int]], device: torch.device) -> Tensor | None:
    """Return the order that sorts rows by expert, and within it by rank; None if they are."""
    if not received or len(received[0]) == 1 or len(received) == 1:
        return None
    if device.type == "meta":
        return torch.empty(sum(map(sum, received)), dtype=torch.long, device=device)
    lengths = torch.tensor(received)
    starts = lengths.flatten().cumsum(0).view_as(lengths) - lengths
    flat = lengths.t().flatten()
    first = torch.repeat_interleave(starts.t().flatten() - (flat.cumsum(0) - flat), flat)
    return (first + torch.arange(len(first))).to(device)


def _ranks_of_token(experts: int, topk: int, ranks: int) -> float:
    """Return how many ranks hold some of a token's experts on average, if any choice of experts is as likely as any other."""
    return ranks * (1 - comb(experts - experts // ranks, topk) / comb(experts, topk))


def _even(rows: int, parts: int) -> list[int]:
    """Return the sizes of parts that differ by one row at most."""
    return [rows * (part + 1) // parts - rows * part // parts for part in range(parts)]
