"""`TrainStep` is one batch: forwards and backwards by the schedule's table, gradient reduction, update.

Normalisation, for the microbatches' loss sums L_i over n_i unmasked tokens, M microbatches and D data-parallel ranks:
by default the gradient is that of mean over (ranks, microbatches) of L_i/n_i; with `calculate_per_token_loss` it is that of
sum L_i / sum n_i over everything. The reported loss is sum L_i / sum n_i in both cases.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from primus.engine.checkpoint.rng import capture_rng, restore_rng
from primus.engine.data.loader import Batch
from primus.engine.device_memory import return_cached
from primus.engine.optim.optimizer import Optimizer, Update
from primus.engine.optim.watch import GradientWatch, SpikeWatch
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.trace import Spans
from primus.engine.train.predictions import Further, Predictions
from primus.engine.train.routers import Routers
from primus.engine.train.stages import Stages
from primus.engine.train.sums import BatchSums, TokenCounts
from primus.engine.train.validation import Validation
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
    sums: BatchSums


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What of a step's outcome is known before its update."""

    iteration: int
    learning_rate: float
    loss_scale: float
    batch_size: int


@dataclass(kw_only=True, slots=True)
class TrainStep:
    """Model, gradients and optimizer of this rank, and the rule that turns a batch into an update."""

    stages: Stages
    buffers: DataParallel
    optimizer: Optimizer
    mesh: Mesh
    trace: Spans
    per_token: bool
    check_finite: bool
    spikes: SpikeWatch | None
    gradients: GradientWatch
    streams: RandomStreams
    routers: Routers
    predictions: Predictions
    empties: int = 0
    """Level of `empty_unused_memory_level`."""
    validation: Validation | None = None
    """Lets stages go on to the next step before all have ended this one; None: they wait."""
    earlier: StepOutcome | None = field(default=None, init=False)
    """Outcome of the step before, where the last call has settled it."""
    _open: _Facts | None = field(default=None, init=False)

    @property
    def is_open(self) -> bool:
        """Whether the outcome of the last step is not known yet, and weights may have to change once more."""
        return self._open is not None

    def __call__(
        self, batches: Iterator[Batch], *, num_microbatches: int, batch_size: int, iteration: int
    ) -> StepOutcome | None:
        """Train on the next `num_microbatches` batches; RunError names iteration and rank at a NaN or infinite value.

        None: the outcome is open, until the next call settles it in passing, or `settle`.
        """
        losses: list[Tensor] = []

        def on_loss(total: Tensor, count: Tensor, whole_count: Tensor, further: Sequence[Further]) -> Tensor:
            losses.append(torch.stack((total.detach(), count)))
            # Gradients are averaged over the ranks that share a sequence as well, though they are parts of one sum.
            share = self.mesh.cp.size / num_microbatches
            objective = total if self.per_token else total / whole_count.clamp(min=1) * share
            return self.optimizer.scale_loss(objective + self.predictions.objective(further, share))

        self.earlier = None
        self.buffers.zero_grad()
        batches = self._begin_routers(batches, num_microbatches)
        with self.trace.span("forward-backward", 1):
            self.stages.train(batches, num_microbatches, on_loss, self.buffers, counts=self._begin())
        table = self._table(losses, num_microbatches)
        self._watch(table, iteration)
        with self.trace.span("all-grads-sync", 1):
            self.buffers.finish_grad_sync()
        self.routers.end()
        if self.empties >= 1:
            return_cached(self.mesh.device)
        facts = _Facts(
            iteration=iteration,
            learning_rate=self.optimizer.learning_rate,
            loss_scale=self.optimizer.loss_scale,
            batch_size=batch_size,
        )
        if self.validation is not None and self.validation.is_armed:
            with self.trace.span("optimizer", 1):
                self.validation.begin(table)
            self._open = facts
            return None
        sums = self._over_ranks(table)
        with self.trace.span("optimizer", 1):
            update = self.optimizer.step(
                grad_divisor=max(sums.trained_tokens, 1.0) if self.per_token else 1.0, origin=lambda: self._origin(facts)
            )
        if self.empties >= 2:
            return_cached(self.mesh.device)
        if self.validation is not None:
            self.validation.note(update)
        return self._outcome(update, sums, facts)

    def _begin_routers(self, batches: Iterator[Batch], num_microbatches: int) -> Iterator[Batch]:
        """Start the losses of routers, and return the batches of the step: drawn at once where their tokens are counted."""
        begin = partial(self.routers.begin, loss_scale=self.optimizer.loss_scale, num_microbatches=num_microbatches)
        if not self.routers.need_counts:
            begin()
            return batches
        with self.trace.span("batch-generator", 2):
            drawn = list(islice(batches, num_microbatches))
        begin(counts=TokenCounts.of(drawn, self.mesh.dp))
        return iter(drawn)

    def settle(self) -> StepOutcome:
        """End the step that is open on all stages; all ranks call it, and wait for one another."""
        return self._settle()[0]

    def _begin(self) -> Callable[[], bool] | None:
        """Return what settles an open step while this one is under way, and says whether it stands."""
        if self._open is None:
            self.gradients.begin()
            return None
        random = capture_rng(self.streams, self.mesh.device)

        def counts() -> bool:
            self.earlier, stands = self._settle()
            self.gradients.begin()
            if not stands:
                restore_rng(random, self.streams, self.mesh.device)
            return stands

        return counts

    def _settle(self) -> tuple[StepOutcome, bool]:
        facts, self._open = self._open, None
        assert facts is not None, "no step is open"
        assert self.validation is not None
        end = self.validation.settle(lambda: self._origin(facts))
        return self._outcome(end.update, end.sums, facts), end.stands

    def _origin(self, facts: _Facts) -> str:
        return f"at iteration {facts.iteration}, {self.gradients.origin()}"

    def _outcome(self, update: Update, sums: BatchSums, facts: _Facts) -> StepOutcome:
        if update.succeeded:
            self.optimizer.advance_schedule(facts.batch_size)
        return StepOutcome(
            succeeded=update.succeeded,
            loss=sums.mean_loss,
            grad_norm=update.grad_norm,
            num_zeros=update.num_zeros,
            params_norm=update.params_norm,
            learning_rate=facts.learning_rate,
            loss_scale=facts.loss_scale,
            batch_size=facts.batch_size,
            sums=sums,
        )

    def _table(self, losses: list[Tensor], num_microbatches: int) -> Tensor:
        """Return what each microbatch adds to the sums on this rank, a row each; zeros where no loss is."""
        table = torch.zeros(num_microbatches, len(BatchSums._fields), dtype=torch.float64, device=self.mesh.device)
        if losses:
            # Its slices come one after another.
            table[:, :2] = torch.stack(losses).unflatten(0, (num_microbatches, -1)).sum(1)
            # Ranks that share sequences share their work.
            for column, work in enumerate(self.stages.work, 2):
                table[0, column] = work / self.mesh.cp.size
        return table

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

    def _over_ranks(self, table: Tensor) -> BatchSums:
        """Sum over microbatches and data-parallel ranks; the last stage alone has losses, and tells the others."""
        sums = table.sum(dim=0)
        for group in (self.mesh.dp_cp, self.mesh.pp):
            all_reduce_(sums, group)
        return BatchSums(*sums.tolist())
