"""`Evaluation` validates during and after the run, and tests at its end."""

import gc
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from primus.engine.config import TrainConfig
from primus.engine.data.loader import Batch
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.callbacks.logging import Logging
from primus.engine.train.evaluate import evaluate
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.stages import Stages
from primus.engine.train.step import StepOutcome

__all__ = ["Evaluation", "EvaluationSet"]

log = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class EvaluationSet:
    """One set to evaluate on."""

    name: str
    """`validation`, `validation_1`, `test`."""
    batches: Iterator[Batch]
    """Goes on where the previous evaluation stopped; under `full_validation` it starts anew after each full pass."""
    num_microbatches: int
    """Microbatches a rank evaluates each time."""
    samples: int
    """Samples over all ranks that this is."""


class Evaluation(Callback):
    """Runs the sets that are due and hands the means to the log."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        stages: Stages,
        mesh: Mesh,
        logging: Logging,
        validation: Sequence[EvaluationSet],
        test: EvaluationSet | None,
    ) -> None:
        self._config, self._stages, self._mesh, self._logging = config, stages, mesh, logging
        self._validation, self._test = validation, test
        self._started_at = self._validated_at = -1

    def on_start(self, loop: Loop) -> None:
        self._started_at = loop.state.iteration

    def can_wait(self, loop: Loop) -> bool:
        interval = self._config.evaluation.eval_interval
        return not (interval and loop.state.iteration % interval == 0)

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        if not self.can_wait(loop):
            self._validate(loop)

    def on_end(self, loop: Loop) -> None:
        """Evaluate a completed run once: one that was told to stop leaves at once, one that was complete before is not new."""
        has_trained = loop.state.iteration > self._started_at
        if not loop.is_complete or not (has_trained or self._config.skip_train):
            return
        if self._validated_at != loop.state.iteration:
            self._validate(loop)
        if self._test is not None:
            self._run(loop, self._test)
        self._logging.flush_evaluations(loop)

    def _validate(self, loop: Loop) -> None:
        collects = self._config.manual_gc and self._config.manual_gc_eval
        if collects:
            gc.collect()
        for one in self._validation:
            self._run(loop, one)
            loop.state.consumed_valid_samples += one.samples
        self._validated_at = loop.state.iteration
        if collects:
            gc.collect(generation=0)

    def _run(self, loop: Loop, one: EvaluationSet) -> None:
        with self._logging.paused(), loop.trace.span("evaluate"):
            loss = evaluate(self._stages, one.batches, num_microbatches=one.num_microbatches, mesh=self._mesh)
        ppl = math.exp(min(20.0, loss))
        log.info("%s loss at iteration %d | lm loss value: %.6E | lm loss PPL: %.6E", one.name, loop.state.iteration, loss, ppl)
        self._logging.add_evaluation(one.name, loss=loss, ppl=ppl)
