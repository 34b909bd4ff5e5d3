"""`Pipeline`: this rank's part of every step, by the schedule that the configuration names."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from primus.engine.config import ConfigContainer
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.model.hidden import hidden_shape, residual_dtype
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.adaptive import Adaptive
from primus.engine.pipeline.links import Links
from primus.engine.pipeline.recorder import Recorder
from primus.engine.pipeline.runtime import Around, Forward, Gradients, Roots, execute
from primus.engine.pipeline.schedules import Op, RankPlan, Schedule, forwards, peak_activations, rank_plan, schedule_of
from primus.engine.precision import dtype_of

__all__ = ["Pipeline", "build_pipeline"]

log = logging.getLogger(__name__)


class Pipeline:
    """Runs steps and evaluations; plans are made once for each number of microbatches."""

    def __init__(
        self,
        config: PipelineConfig,
        mesh: Mesh,
        links: Links | None = None,
        *,
        recorder: Recorder | None = None,
        adaptive: Adaptive | None = None,
    ) -> None:
        """`links` is needed for more than one pipeline rank, `recorder` for `adaptive`."""
        self._config, self._mesh, self._links = config, mesh, links
        self.recorder = recorder
        """Times of the last step that was timed; None where nobody asks for them."""
        self._adaptive = adaptive
        self._training: dict[int, tuple[RankPlan, float]] = {}
        self._evaluation: dict[int, RankPlan] = {}

    @property
    def num_slices(self) -> int:
        """Parts of each sequence that pass the stages one after another."""
        return self._config.num_slices

    def train(
        self, num_microbatches: int, forward: Forward, gradients: Gradients, around: Around, *, roots: Roots | None = None
    ) -> None:
        """Run all forwards and backwards of a step; every rank of the pipeline calls it. The rest is as `execute` says."""
        if num_microbatches not in self._training:
            self._training[num_microbatches] = self._plan(num_microbatches)
        plan, alive = self._training[num_microbatches]
        measures = self._adaptive is not None and self._adaptive.is_timing
        # Only then: the recorder waits for the device at every operation.
        if self.recorder is not None and (measures or self._config.dump_times):
            self.recorder.begin()
            around = _both(around, self.recorder.around)
        if self._adaptive is not None and measures:
            around = _both(around, self._adaptive.around)
        execute(plan, forward=forward, gradients=gradients, links=self._links, around=around, roots=roots)
        if self._adaptive is not None and self.recorder is not None:
            new = self._adaptive.after_step(self.recorder, alive)
            if new is not None:
                self._config, self._training = new, {}

    def evaluate(self, num_microbatches: int, forward: Forward) -> None:
        """Run forwards, without gradients."""
        if num_microbatches not in self._evaluation:
            config, pp = self._config, self._mesh.pp
            schedule = forwards(config.placement, pp.size, config.num_chunks, num_microbatches, config.num_slices)
            self._evaluation[num_microbatches] = rank_plan(schedule, pp.index)
        execute(self._evaluation[num_microbatches], forward=forward, links=self._links)

    def _plan(self, num_microbatches: int) -> tuple[RankPlan, float]:
        schedule = schedule_of(self._config, self._mesh.pp.size, num_microbatches)
        if self._config.debug_scheduler_table and self._mesh.rank == 0:
            log.info("schedule %s of %d microbatches\n%s", schedule.algorithm, num_microbatches, _text(schedule))
        return rank_plan(schedule, self._mesh.pp.index), peak_activations(schedule, self._mesh.pp.index)


def build_pipeline(config: ConfigContainer, mesh: Mesh, weights: set[int], wait: Callable[[], object]) -> Pipeline:
    """Return the pipeline of a run.

    `weights` holds the addresses of the weights' memory; `wait` returns when the device has done what it was given.
    """
    model, pipeline = config.model, config.model.pipeline
    if mesh.pp.size == 1:
        return Pipeline(pipeline, mesh)
    links = Links(
        mesh,
        hidden_shape(model, mesh, config.train.micro_batch_size),
        residual_dtype(model, dtype_of(config.mixed_precision.params_dtype)),
        posts_ahead=pipeline.communication_method == "async_p2p",
        scatters=pipeline.scatter_gather and not model.parallel.sequence_parallel,
        knocks=pipeline.pre_communication,
    )
    is_adaptive = pipeline.timed_steps is not None
    return Pipeline(
        pipeline,
        mesh,
        links,
        recorder=Recorder(wait) if pipeline.dump_times or is_adaptive else None,
        adaptive=Adaptive(pipeline, mesh, weights) if is_adaptive else None,
    )


def _both(outer: Around, inner: Around) -> Around:
    @contextmanager
    def around(op: Op) -> Iterator[None]:
        with outer(op), inner(op):
            yield

    return around


def _text(schedule: Schedule) -> str:
    """Return a line for each rank, `(KIND|microbatch|chunk)` for each operation, `|slice` besides where sequences are cut."""

    def word(op: Op) -> str:
        return f"({op.kind}|{op.microbatch}|{op.chunk}{f'|{op.slice}' if schedule.num_slices > 1 else ''})"

    return "\n".join(" ".join(map(word, row)) for row in schedule.rows)
