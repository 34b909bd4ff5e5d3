"""`Logging` turns outcomes into records and hands them to the sinks on the reporting rank.

Times exclude evaluations and saves (`paused`). A record's loss is the mean over the interval's successful iterations; skipped
and NaN iterations are counted over the interval.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from primus.engine.config import LoggerConfig
from primus.engine.observe.averages import BlockAverage
from primus.engine.observe.memory import memory_bytes
from primus.engine.observe.sink import Sink, close_all
from primus.engine.observe.timers import TimerReport
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.step import StepOutcome

__all__ = ["Logging"]


class Logging(Callback):
    """Measures the interval and reports it."""

    def __init__(
        self, config: LoggerConfig, mesh: Mesh, *, is_tuning: bool, sinks: Sequence[Sink], timers: TimerReport
    ) -> None:
        """`is_tuning` also reports how many tokens that have a loss pass in a second."""
        self._config, self._mesh, self._is_tuning, self._sinks, self._timers = config, mesh, is_tuning, sinks, timers
        self._losses: list[float] = []
        self._skipped = self._nan = self._iterations = 0
        self._tokens = self._trained_tokens = self._flops = 0.0
        self._started = time.perf_counter()
        self._evaluations: dict[str, float] = {}
        self._average = BlockAverage(config.log_avg_skip_iterations, config.log_avg_reset_interval)

    def on_start(self, loop: Loop) -> None:
        self._started = time.perf_counter()

    def after_step(self, loop: Loop, outcome: StepOutcome) -> None:
        is_nan = outcome.loss != outcome.loss
        self._skipped += not outcome.succeeded
        self._nan += is_nan
        if outcome.succeeded and not is_nan:
            self._losses.append(outcome.loss)
        self._iterations += 1
        self._tokens += outcome.sums.tokens
        self._trained_tokens += outcome.sums.trained_tokens
        self._flops += loop.flops_of(outcome.sums)
        if self._sinks:
            values = self._step_record(loop, outcome)
            for sink in self._sinks:
                sink.step(values)
        if loop.state.iteration % self._config.log_interval == 0 or self._evaluations:
            self._report(loop, outcome)

    def can_wait(self, loop: Loop) -> bool:
        return True

    def add_evaluation(self, name: str, *, loss: float, ppl: float) -> None:
        """Keep an evaluation for the record of the present iteration."""
        self._evaluations[f"{name}_loss"] = loss
        self._evaluations[f"{name}_ppl"] = ppl

    def flush_evaluations(self, loop: Loop) -> None:
        """Report evaluations made after the last iteration in a record of their own."""
        if self._evaluations:
            counters = {"iteration": loop.state.iteration, "consumed_samples": loop.state.consumed_train_samples}
            self._emit({**counters, **self._evaluations})

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the body's time out of the interval."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._started += time.perf_counter() - start

    def close(self, *, failed: bool) -> None:
        close_all(self._sinks, failed=failed)

    def _step_record(self, loop: Loop, outcome: StepOutcome) -> dict[str, float | int]:
        record: dict[str, float | int] = {
            "iteration": loop.state.iteration,
            "consumed_samples": loop.state.consumed_train_samples,
            "lm_loss": outcome.loss,
            "learning_rate": outcome.learning_rate,
            "loss_scale": outcome.loss_scale,
            "global_batch_size": outcome.batch_size,
            "world_size": self._mesh.layout.world_size,
        }
        optional = {"grad_norm": outcome.grad_norm, "num_zeros": outcome.num_zeros, "params_norm": outcome.params_norm}
        record |= {name: value for name, value in optional.items() if value is not None}
        if self._config.log_memory_to_tensorboard:
            record |= memory_bytes(self._mesh.device)
        return record

    def _report(self, loop: Loop, outcome: StepOutcome) -> None:
        seconds = (time.perf_counter() - self._started) / self._iterations
        record = self._step_record(loop, outcome) | {
            "lm_loss": sum(self._losses) / len(self._losses) if self._losses else outcome.loss,
            "skipped_iterations": self._skipped,
            "nan_iterations": self._nan,
            "iteration_time_ms": seconds * 1e3,
            "tokens_per_second": self._tokens / self._iterations / seconds,
            "tflops_per_device": self._flops / self._iterations / seconds / 1e12 / self._mesh.layout.world_size,
        }
        if self._is_tuning:
            record["trained_tokens_per_second"] = self._trained_tokens / self._iterations / seconds
        if loop.step is not None:
            record |= loop.step.routers.notes() | loop.step.predictions.notes()
        record |= self._average.add(record, self._iterations)
        record |= self._timers.collect(loop.trace.drain(), self._iterations)
        self._emit({**record, **self._evaluations})
        self._losses.clear()
        self._skipped = self._nan = self._iterations = 0
        self._tokens = self._trained_tokens = self._flops = 0.0
        self._started = time.perf_counter()

    def _emit(self, record: dict[str, float | int]) -> None:
        for sink in self._sinks:
            sink.write(record)
        self._evaluations = {}
