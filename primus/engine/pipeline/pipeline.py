"""`Pipeline`: this rank's part of every step, by the schedule that the configuration names."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from primus.engine.config import ConfigContainer
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.device_memory import device_name
from primus.engine.model.gpt import GPTModel
from primus.engine.model.hidden import hidden_shape, residual_dtype
from primus.engine.parallel.lanes import Lanes
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.adaptive import Adaptive
from primus.engine.pipeline.host_link import host_link
from primus.engine.pipeline.links import Links
from primus.engine.pipeline.offload import OffloadStore, core_attentions
from primus.engine.pipeline.recorder import Recorder
from primus.engine.pipeline.runtime import Around, Forward, Gradients, Roots, Trial, execute
from primus.engine.pipeline.schedules import (
    Op,
    Pause,
    RankPlan,
    Schedule,
    forwards,
    pause_of,
    peak_activations,
    rank_plan,
    schedule_of,
)
from primus.engine.pipeline.storage import resident_memory
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
        offload: OffloadStore | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        """`links` is needed for more than one pipeline rank, `recorder` for `adaptive`, `offload` for tables with copies.

        With `lanes` a backward and the next forward run in turns.
        """
        self._config, self._mesh, self._links, self._lanes = config, mesh, links, lanes
        self.recorder = recorder
        """Times of the last step that was timed; None where nobody asks for them."""
        self._adaptive, self._offload = adaptive, offload
        self._has_run = False
        self._training: dict[int, tuple[RankPlan, float, Pause]] = {}
        self._evaluation: dict[int, RankPlan] = {}

    @property
    def num_slices(self) -> int:
        """Parts of each sequence that pass the stages one after another."""
        return self._config.num_slices

    def train(
        self,
        num_microbatches: int,
        forward: Forward,
        gradients: Gradients,
        around: Around,
        *,
        roots: Roots | None = None,
        counts: Callable[[], bool] | None = None,
    ) -> None:
        """Run all forwards and backwards of a step; every rank of the pipeline calls it. The rest is as `execute` says.

        With `counts` the step begins before it is known whether the one before stands, and asks at its `Pause`.
        """
        if num_microbatches not in self._training:
            self._training[num_microbatches] = self._plan(num_microbatches)
        plan, alive, pause = self._training[num_microbatches]
        measures = self._adaptive is not None and self._adaptive.is_timing
        # Only then: the recorder waits for the device at every operation.
        if self.recorder is not None and (measures or self._config.dump_times):
            self.recorder.begin()
            around = _both(around, self.recorder.around)
        if self._adaptive is not None and measures:
            around = _both(around, self._adaptive.around)
        execute(
            plan,
            forward=forward,
            gradients=gradients,
            links=self._links,
            around=around,
            roots=roots,
            offload=self._offload,
            trial=None if counts is None else Trial(pause=pause, counts=counts),
            lanes=self._lanes,
        )
        self._say_what_left()
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

    def _say_what_left(self) -> None:
        """Say after the first step how much was on the host."""
        if self._offload is None or self._has_run:
            return
        self._has_run = True
        if self._offload.most_parked_bytes:
            log.info("up to %s bytes of activations lie in host memory at a time", f"{self._offload.most_parked_bytes:,d}")
        else:
            log.warning(
                "no activations of this rank go to the host: nothing is kept that may leave, or all is needed again too soon"
            )

    def _plan(self, num_microbatches: int) -> tuple[RankPlan, float, Pause]:
        schedule = schedule_of(self._config, self._mesh.pp.size, num_microbatches)
        if self._config.debug_scheduler_table and self._mesh.rank == 0:
            log.info("schedule %s of %d microbatches\n%s", schedule.algorithm, num_microbatches, _text(schedule))
        rank = self._mesh.pp.index
        return rank_plan(schedule, rank), peak_activations(schedule, rank), pause_of(schedule, rank)


def build_pipeline(config: ConfigContainer, mesh: Mesh, chunks: Sequence[GPTModel], wait: Callable[[], object]) -> Pipeline:
    """Return the pipeline of a run over this rank's chunks; `wait` returns when the device has done what it was given."""
    model = config.model
    pipeline = model.pipeline.with_copy_time(model.hidden_size, model.seq_length, device_name(mesh.device))
    if mesh.pp.size == 1:
        return Pipeline(pipeline, mesh, lanes=chunks[0].lanes if model.moe.overlaps_exchange else None)
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
        adaptive=Adaptive(pipeline, mesh, resident_memory(chunks)) if is_adaptive else None,
        offload=_offload(pipeline, mesh, chunks) if pipeline.offload.is_on else None,
    )


def _offload(pipeline: PipelineConfig, mesh: Mesh, chunks: Sequence[GPTModel]) -> OffloadStore:
    offload = pipeline.offload
    link = host_link(mesh.device, overlaps=offload.overlaps)
    attention = core_attentions(chunks[: offload.num_chunks]) if offload.tensors == "attn" else None
    return OffloadStore(link, resident_memory(chunks), attention)


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
