"""`Stages`: this rank's chunks of the model inside their pipeline; a step and an evaluation both run through it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from primus.engine.data.loader import Batch
from primus.engine.kernels.segments import Mask, Segments
from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.moe.router import Router
from primus.engine.model.mtp import Ahead
from primus.engine.model.slices import Root, SequenceSlice
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Group
from primus.engine.pipeline.pipeline import Pipeline
from primus.engine.pipeline.runtime import Gradients
from primus.engine.pipeline.schedules import Op
from primus.engine.trace import Spans
from primus.engine.train.predictions import Further, further_ahead
from primus.engine.train.sums import Work

__all__ = ["Stages"]

OnLoss = Callable[[Tensor, Tensor, Tensor, Sequence[Further]], Tensor]
"""Gets a microbatch's sum of losses over this rank's unmasked tokens, their number, their number in the whole sequences, and in
training the losses of tokens further ahead; returns what to differentiate. A microbatch in slices is told slice by slice."""

_SPANS = {"F": "forward-compute", "B": "backward-compute", "W": "weight-gradient-compute"}


class Stages:
    """The model as far as this rank holds it."""

    def __init__(self, chunks: Sequence[GPTModel], pipeline: Pipeline, cp: Group, trace: Spans) -> None:
        self.chunks, self.pipeline = tuple(chunks), pipeline
        self._cp, self._trace = cp, trace
        self._has_routers = any(isinstance(module, Router) for chunk in chunks for module in chunk.modules())
        self.work = Work()
        """What the last training step of this replica was."""

    def train(
        self,
        batches: Iterator[Batch],
        num_microbatches: int,
        on_loss: OnLoss,
        gradients: Gradients,
        *,
        counts: Callable[[], bool] | None = None,
    ) -> None:
        """Run forwards and backwards of the next microbatches; `on_loss` is called where the last stage is.

        With `counts` first forwards run before it is known whether they count; where it says no they run again on the same
        batches.
        """
        for chunk in self.chunks:
            chunk.train()
        forward = self._forward(batches, on_loss)
        self.pipeline.train(
            num_microbatches,
            forward,
            gradients,
            lambda op: self._trace.span(_SPANS[op.kind], 2),
            roots=forward.roots,
            counts=None if counts is None else forward.remembering(counts),
        )
        self.work = forward.work

    def evaluate(self, batches: Iterator[Batch], num_microbatches: int, on_loss: OnLoss) -> None:
        """Run forwards of the next microbatches without dropout; the caller switches gradients off."""
        for chunk in self.chunks:
            chunk.eval()
        self.pipeline.evaluate(num_microbatches, self._forward(batches, on_loss))

    def _forward(self, batches: Iterator[Batch], on_loss: OnLoss) -> "_Forward":
        slices = [_Slices(self.pipeline.num_slices) for _ in self.chunks]
        return _Forward(self.chunks, slices, batches, on_loss, self._cp, self._trace, has_routers=self._has_routers)


class _Forward:
    """Runs chunks on the microbatches of one step, each drawn once."""

    def __init__(
        self,
        chunks: Sequence[GPTModel],
        slices: Sequence["_Slices"],
        batches: Iterator[Batch],
        on_loss: OnLoss,
        cp: Group,
        trace: Spans,
        *,
        has_routers: bool,
    ) -> None:
        self._chunks, self._slices, self._batches, self._on_loss = chunks, slices, batches, on_loss
        self._cp, self._trace, self._has_routers = cp, trace, has_routers
        self._remembered: list[Batch] | None = None
        """All microbatches drawn so far, while they may be needed again."""
        self._drawn: dict[int, tuple[Batch, int]] = {}
        """Microbatches in use, and how many times they are still to be seen: by each chunk, in each slice."""
        self._next = 0
        self.work = Work()
        """What the microbatches drawn so far are."""

    def __call__(self, op: Op, hidden: Tensor | None) -> Tensor:
        with self._trace.span("batch-generator", 2):
            batch = self._take(op.microbatch)
        chunk, slices = self._chunks[op.chunk], self._slices[op.chunk]
        rows = slices.rows(op.slice, batch.tokens.shape[1])
        tokens, positions, labels, loss_mask = (
            own_slice(x[:, rows], self._cp.size, self._cp.index, 1)
            for x in (batch.tokens, batch.position_ids, batch.labels, batch.loss_mask)
        )
        mask = _mask(batch, rows)
        part = slices.begin(op, rows.start)
        real = _real(batch, mask) if self._has_routers else None
        whole = self._ahead(batch, chunk, real)
        ahead = [self._own(depth) for depth in whole]
        if real is not None:
            real = real.rows(rows).on_context_rank(self._cp)
        made: Tensor = chunk(tokens, positions, mask, labels, loss_mask, hidden_SBH=hidden, part=part, real=real, ahead=ahead)
        if chunk.output_layer is None:
            return made
        total, *sums = made.unbind() if ahead else (made,)
        further = [
            Further(depth_total, own.loss_mask.sum(dtype=made.dtype), depth.loss_mask.sum(dtype=made.dtype))
            for depth_total, own, depth in zip(sums, ahead, whole, strict=True)
        ]
        return self._on_loss(total, loss_mask.sum(dtype=made.dtype), batch.loss_mask.sum(dtype=made.dtype), further)

    def _own(self, depth: Ahead) -> Ahead:
        """Return the part of this rank."""
        tokens, positions, labels, loss_mask = (own_slice(x_BS, self._cp.size, self._cp.index, 1) for x_BS in depth[:4])
        real = None if depth.real is None else depth.real.on_context_rank(self._cp)
        return Ahead(tokens, positions, labels, loss_mask, real)

    def _ahead(self, batch: Batch, chunk: GPTModel, real: RealTokens | None) -> list[Ahead]:
        """Return what the prediction layers of a chunk read in training, for whole sequences."""
        if chunk.mtp is None or not chunk.training:
            return []
        return [further_ahead(batch, tokens, real) for tokens in range(1, len(chunk.mtp.layers) + 1)]

    def remembering(self, counts: Callable[[], bool]) -> Callable[[], bool]:
        """Keep batches until `counts` is asked, and begin again with them if it says no."""
        remembered = self._remembered = []

        def ask() -> bool:
            self._remembered = None
            if counts():
                return True
            self._batches = chain(remembered, self._batches)
            self._drawn, self._next, self.work = {}, 0, Work()
            return False

        return ask

    def roots(self, op: Op) -> list[Root]:
        """Return where a backward starts besides the operation's output."""
        return self._slices[op.chunk].end(op)

    def _take(self, microbatch: int) -> Batch:
        while self._next <= microbatch:
            batch = next(self._batches)
            self.work = self.work.and_of(batch)
            if self._remembered is not None:
                self._remembered.append(batch)
            self._drawn[self._next] = batch, sum(slices.number for slices in self._slices)
            self._next += 1
        batch, uses = self._drawn.pop(microbatch)
        if uses > 1:
            self._drawn[microbatch] = batch, uses - 1
        return batch


def _mask(batch: Batch, rows: slice) -> Mask:
    if batch.cu_seqlens is not None:
        return Segments(batch.cu_seqlens, batch.tokens.device)
    return None if batch.attention_mask is None else batch.attention_mask[:, :, rows, : rows.stop]


def _real(batch: Batch, mask: Mask) -> RealTokens | None:
    samples = mask if isinstance(mask, Segments) else None
    if batch.padding is None and samples is None:
        return None
    padding = torch.zeros_like(batch.tokens, dtype=torch.bool) if batch.padding is None else batch.padding
    return RealTokens.of(padding, samples)


class _Slices:
    """The slices under way on one chunk, by microbatch, in the order of the sequence."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Slices of a sequence; with one there is nothing to keep."""
        self._under_way: dict[int, list[SequenceSlice]] = {}

    def rows(self, number: int, length: int) -> slice:
        """Return the positions of a slice of a sequence."""
        size = length // self.number
        return slice(number * size, (number + 1) * size)

    def begin(self, op: Op, first: int) -> SequenceSlice | None:
        """Return the slice of a forward, which comes after those before it; None where sequences are whole."""
        if self.number == 1:
            return None
        earlier = self._under_way.setdefault(op.microbatch, [])
        assert len(earlier) == op.slice, f"slice {op.slice} comes after {len(earlier)} slices"
        part = SequenceSlice(first, earlier)
        earlier.append(part)
        if op.slice == self.number - 1 and not torch.is_grad_enabled():
            del self._under_way[op.microbatch]
        return part

    def end(self, op: Op) -> list[Root]:
        """Return the roots of a slice before its backward; the last slice under way is the one."""
        if self.number == 1:
            return []
        under_way = self._under_way[op.microbatch]
        part = under_way.pop()
        assert len(under_way) == op.slice, f"slice {op.slice} goes backward before slice {len(under_way)}"
        if not under_way:
            del self._under_way[op.microbatch]
        return part.roots()
