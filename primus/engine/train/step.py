"""`TrainStep` is one batch: forwards and backwards by the schedule's table, gradient reduction, update.

Normalisation, for the microbatches' loss sums L_i over n_i unmasked tokens, M microbatches and D data-parallel ranks:
by default the gradient is that of mean over (ranks, microbatches) of L_i/n_i; with `calculate_per_token_loss` it is that of
sum L_i / sum n_i over everything. The reported loss is sum L_i / sum n_i in both cases.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from primus.engine.data.loader import Batch
from primus.engine.optim.optimizer import Optimizer
from primus.engine.optim.watch import GradientWatch, SpikeWatch
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import Mesh
from primus.engine.trace import Spans
from primus.engine.train.stages import Stages
from primus.errors import RunError

__all__ = ["StepOutcome", "TrainStep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """What one iteration did."""

    succeeded: bool
    """False: gradients overflowed and the update was skipped."""
    loss: float
    """Token mean over the global batch."""
    grad_norm: float | None
    num_zeros: int | None
    params_norm: float | None
    learning_rate: float
    """Rate that this iteration used."""
    loss_scale: float
    batch_size: int


@dataclass(kw_only=True, slots=True)
class TrainStep:
    """Model, gradients and optimizer of this rank, and the rule that turns a batch into an update."""

    stages: Stages
    buffers: GradientBuffers
    optimizer: Optimizer
    mesh: Mesh
    trace: Spans
    per_token: bool
    check_finite: bool
    spikes: SpikeWatch | None
    gradients: GradientWatch

    def __call__(self, batches: Iterator[Batch], *, num_microbatches: int, batch_size: int, iteration: int) -> StepOutcome:
        """Train on the next `num_microbatches` batches; RunError names iteration and rank at a NaN or infinite value."""
        losses: list[Tensor] = []

        def on_loss(total: Tensor, count: Tensor, whole_count: Tensor) -> Tensor:
            losses.append(torch.stack((total.detach(), count)))
            # Gradients are averaged over the ranks that share a sequence as well, though they are parts of one sum.
            share = self.mesh.cp.size / num_microbatches
            objective = total if self.per_token else total / whole_count.clamp(min=1) * share
            return self.optimizer.scale_loss(objective)

        self.buffers.zero_grad()
        self.gradients.begin()
        with self.trace.span("forward-backward", 1):
            self.stages.train(batches, num_microbatches, on_loss, self.buffers)
        table = torch.zeros(1, 2, device=self.mesh.device)
        if losses:
            # A row a microbatch; its slices come one after another.
            table = torch.stack(losses).unflatten(0, (num_microbatches, -1)).sum(1)
        self._watch(table, iteration)
        with self.trace.span("all-grads-sync", 1):
            self.buffers.finish_grad_sync()
        total, count = self._over_ranks(table)
        learning_rate, loss_scale = self.optimizer.learning_rate, self.optimizer.loss_scale
        with self.trace.span("optimizer", 1):
            update = self.optimizer.step(
                grad_divisor=max(count, 1.0) if self.per_token else 1.0,
                origin=lambda: f"at iteration {iteration}, {self.gradients.origin()}",
            )
        if update.succeeded:
            self.optimizer.advance_schedule(batch_size)
        return StepOutcome(
            succeeded=update.succeeded,
            loss=total / max(count, 1.0),
            grad_norm=update.grad_norm,
            num_zeros=update.num_zeros,
            params_norm=update.params_norm,
            learning_rate=learning_rate,
            loss_scale=loss_scale,
            batch_size=batch_size,
        )

    def _watch(self, table: Tensor, iteration: int) -> None:
        """Check the local loss sums before anything is reduced or updated."""
        if not (self.check_finite or self.spikes):
            return
        for microbatch, value in enumerate(table[:, 0].tolist()):
            if self.check_finite and not abs(value) < float("inf"):
                kind = "NaN" if value != value else "Inf"
                raise RunError(
                    f"found {kind} in local forward loss calculation: rank {self.mesh.rank}, iteration {iteration}, "
                    f"microbatch {microbatch}; no update was made"
                )
            if self.spikes:
                self.spikes.check("loss", value)

    def _over_ranks(self, table: Tensor) -> tuple[float, float]:
        """Sum over microbatches and data-parallel ranks; the last stage alone has losses, and tells the others."""
        sums = table.double().sum(dim=0)
        for group in (self.mesh.dp_cp, self.mesh.pp):
            all_reduce_(sums, group)
        total, count = sums.tolist()
        return total, count
