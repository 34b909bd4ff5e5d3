"""`Stages`: this rank's chunks of the model inside their pipeline; a step and an evaluation both run through it."""

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from primus.engine.data.loader import Batch
from primus.engine.model.gpt import GPTModel
from primus.engine.parallel.context import own_slice
from primus.engine.parallel.mesh import Group
from primus.engine.pipeline.pipeline import Pipeline
from primus.engine.pipeline.runtime import Gradients
from primus.engine.pipeline.schedules import Op
from primus.engine.trace import Trace

__all__ = ["Stages"]

OnLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Gets a microbatch's sum of losses over this rank's unmasked tokens, their number, and their number in the whole sequences;
returns what to differentiate."""

_SPANS = {"F": "forward-compute", "B": "backward-compute", "W": "weight-gradient-compute"}


class Stages:
    """The model as far as this rank holds it."""

    def __init__(self, chunks: Sequence[GPTModel], pipeline: Pipeline, cp: Group, trace: Trace) -> None:
        self.chunks, self.pipeline = tuple(chunks), pipeline
        self._cp, self._trace = cp, trace

    def train(self, batches: Iterator[Batch], num_microbatches: int, on_loss: OnLoss, gradients: Gradients) -> None:
        """Run forwards and backwards of the next microbatches; `on_loss` is called where the last stage is."""
        for chunk in self.chunks:
            chunk.train()
        forward = _Forward(self.chunks, batches, on_loss, self._cp, self._trace)
        self.pipeline.train(num_microbatches, forward, gradients, lambda op: self._trace.span(_SPANS[op.kind], 2))

    def evaluate(self, batches: Iterator[Batch], num_microbatches: int, on_loss: OnLoss) -> None:
        """Run forwards of the next microbatches without dropout; the caller switches gradients off."""
        for chunk in self.chunks:
            chunk.eval()
        self.pipeline.evaluate(num_microbatches, _Forward(self.chunks, batches, on_loss, self._cp, self._trace))


class _Forward:
    """Runs chunks on the microbatches of one step, each drawn once."""

    def __init__(self, chunks: Sequence[GPTModel], batches: Iterator[Batch], on_loss: OnLoss, cp: Group, trace: Trace) -> None:
        self._chunks, self._batches, self._on_loss, self._cp, self._trace = chunks, batches, on_loss, cp, trace
        self._drawn: dict[int, tuple[Batch, int]] = {}
        """Microbatches in use, and how many chunks have still to see them."""
        self._next = 0

    def __call__(self, op: Op, hidden: Tensor | None) -> Tensor:
        with self._trace.span("batch-generator", 2):
            batch = self._take(op.microbatch)
        chunk = self._chunks[op.chunk]
        tokens, positions, labels, loss_mask = (
            own_slice(x, self._cp.size, self._cp.index, 1)
            for x in (batch.tokens, batch.position_ids, batch.labels, batch.loss_mask)
        )
        made: Tensor = chunk(tokens, positions, batch.attention_mask, labels, loss_mask, hidden_SBH=hidden)
        if chunk.output_layer is None:
            return made
        return self._on_loss(made, loss_mask.sum(dtype=made.dtype), batch.loss_mask.sum(dtype=made.dtype))

    def _take(self, microbatch: int) -> Batch:
        while self._next <= microbatch:
            self._drawn[self._next] = next(self._batches), len(self._chunks)
            self._next += 1
        batch, uses = self._drawn.pop(microbatch)
        if uses > 1:
            self._drawn[microbatch] = batch, uses - 1
        return batch
