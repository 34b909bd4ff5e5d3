"""`Loop` repeats the step until the run is over; whoever listens is a callback.

Order within an iteration: step, counters, then the callbacks in the order given (`assemble` lists them). A callback may read
the state and the outcome; it changes the run only through `stop` and `save`. An outcome may be open until the next step is
under way; callbacks are then told once it is known, unless one of them cannot wait.
"""

from collections.abc import Callable, Iterator, Sequence

from primus.engine.cause import noting_time
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.batch import BatchPlan
from primus.engine.data.loader import Batch
from primus.engine.observe.sink import close_all
from primus.engine.trace import Trace
from primus.engine.train.step import StepOutcome, TrainStep
from primus.engine.train.sums import BatchSums

__all__ = ["Callback", "Loop"]


class Callback:
    """Listener of a run; every hook does nothing unless overridden."""

    def on_start(self, loop: "Loop") -> None:
        """Called once, before the first iteration."""

    def before_step(self, loop: "Loop") -> None:
        """Called before each iteration's data is drawn."""

    def after_step(self, loop: "Loop", outcome: StepOutcome) -> None:
        """Called after each iteration, when the counters already include it."""

    def can_wait(self, loop: "Loop") -> bool:
        """Tell whether `after_step` may be called during the next iteration, when the weights are not those of this one."""
        return False

    def on_end(self, loop: "Loop") -> None:
        """Called once after the last iteration, also when the run stops early but not when it fails."""

    def close(self, *, failed: bool) -> None:
        """Called once at the very end, also when the run fails or is interrupted (`failed`)."""


class Loop:
    """The training run of this rank."""

    def __init__(
        self,
        *,
        state: TrainState,
        step: TrainStep | None,
        batches: Iterator[Batch],
        plan: BatchPlan,
        train_iters: int,
        skipped: frozenset[int],
        flops_of: Callable[[BatchSums], float],
        save: Callable[[], None],
        callbacks: Sequence[Callback],
        trace: Trace,
    ) -> None:
        """`step` may be None if there is nothing to train."""
        self.state, self.step, self.plan, self.trace = state, step, plan, trace
        self.train_iters, self.flops_of = train_iters, flops_of
        self.stop_reason: str | None = None
        """Why the run ends before `train_iters`; None while it goes on."""
        self.last_saved: int | None = None
        """Iteration of the newest save of this process."""
        self.callbacks = list(callbacks)
        """Listeners, in the order of their turns."""
        self._batches, self._skipped, self._save = batches, skipped, save

    @property
    def is_complete(self) -> bool:
        """True once `train_iters` iterations are done."""
        return self.state.iteration >= self.train_iters

    def run(self) -> None:
        """Train to the end or until a callback stops the run."""
        try:
            with noting_time():
                self._run()
        except BaseException:
            close_all(self.callbacks, failed=True)
            raise
        close_all(self.callbacks, failed=False)

    def stop(self, reason: str) -> None:
        """End the run after the present iteration."""
        self.stop_reason = reason

    def save(self) -> None:
        """Write a checkpoint, unless the present iteration has one."""
        assert self.step is None or not self.step.is_open, "the weights may still change"
        if self.last_saved != self.state.iteration:
            self._save()
            self.last_saved = self.state.iteration

    def _run(self) -> None:
        for callback in self.callbacks:
            callback.on_start(self)
        while not self.is_complete and self.stop_reason is None:
            self._iterate()
        self._settle()
        for callback in self.callbacks:
            callback.on_end(self)

    def _iterate(self) -> None:
        consumed = self.state.consumed_train_samples
        size, microbatches = self.plan.running(consumed), self.plan.num_microbatches(consumed)
        dropped = self.plan.scheduled(consumed) - size
        if self.state.iteration in self._skipped:
            self._settle()
            for _ in range(microbatches):
                next(self._batches)
            self.state.advance(samples=size, skipped_samples=size + dropped)
            return
        for callback in self.callbacks:
            callback.before_step(self)
        assert self.step is not None
        outcome = self.step(self._batches, num_microbatches=microbatches, batch_size=size, iteration=self.state.iteration + 1)
        if self.step.earlier is not None:
            # The counters are still those of its iteration.
            self._tell(self.step.earlier)
        self.state.advance(samples=size, skipped_samples=dropped)
        if outcome is not None:
            self._tell(outcome)
        elif not all(callback.can_wait(self) for callback in self.callbacks):
            self._settle()

    def _settle(self) -> None:
        """Learn the outcome of the last step, if it is open."""
        if self.step is not None and self.step.is_open:
            self._tell(self.step.settle())

    def _tell(self, outcome: StepOutcome) -> None:
        self.state.num_floating_point_operations_so_far += self.flops_of(outcome.sums)
        for callback in self.callbacks:
            callback.after_step(self, outcome)
