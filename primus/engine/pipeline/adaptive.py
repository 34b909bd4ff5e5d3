"""A schedule made anew from measured times: the automatic mode of the zero-bubble scheduler (arXiv 2401.10241, section 3).

Each stage times its operations over some steps. The medians over stages are the costs; what a stage may hold follows from a
number of microbatches or from the memory that is left. Rank 0 of the world decides, so that all ranks build one table.
"""

import logging
import statistics
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.device_memory import peak_bytes, total_bytes
from primus.engine.parallel.collectives import all_gather_object
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.recorder import Recorder
from primus.engine.pipeline.schedules import Op
from primus.engine.pipeline.storage import memory_of

__all__ = ["Adaptive", "Measured", "adapted"]

log = logging.getLogger(__name__)

_KINDS = ("F", "B", "W")


@dataclass(frozen=True, slots=True)
class Measured:
    """One stage."""

    times: tuple[float, float, float]
    """Mean of a forward, an input gradient and a weight gradient, in milliseconds."""
    activation_bytes: int
    """What a microbatch keeps from its forward to its last gradient."""
    room_bytes: float
    """Memory for activations."""


def adapted(config: PipelineConfig, stages: list[Measured]) -> PipelineConfig:
    """Return the configuration with the costs and limits that were measured."""
    count = len(stages)
    forward, input_grad, weight_grad = (
        (max(statistics.median_high(stage.times[i] for stage in stages), 1e-6),) * count for i in range(3)
    )
    sizes = [max(stage.activation_bytes, 1) for stage in stages]
    rooms = [stage.room_bytes for stage in stages]
    if config.max_pending_backward is not None:
        rooms = [float(config.max_pending_backward * max(sizes[:2]))] * count
    return replace(
        config,
        cost_forward=forward,
        cost_input_grad=input_grad,
        cost_weight_grad=weight_grad,
        max_memory=tuple(max(1.0, room / size) for room, size in zip(rooms, sizes, strict=True)),
    )


class Adaptive:
    """Measures while a run trains, and says once what the schedule should be."""

    def __init__(self, config: PipelineConfig, mesh: Mesh, weights: set[int]) -> None:
        """`weights` names memory that is no activation."""
        assert config.timed_steps is not None
        self._config, self._mesh, self._weights = config, mesh, weights
        self._first, self._last = config.timed_steps
        self._steps = 0
        self._means: list[tuple[float, ...]] = []
        self._saved: dict[int, int] = {}

    @property
    def is_timing(self) -> bool:
        """Whether the coming step is measured."""
        return self._first <= self._steps + 1 <= self._last

    def around(self, op: Op) -> AbstractContextManager[None]:
        """Count what the forward of the first microbatch keeps for its backward."""
        if op.kind != "F" or op.microbatch > 0:
            return nullcontext()
        self._saved = {}
        return torch.autograd.graph.saved_tensors_hooks(self._count, lambda kept: kept)

    def after_step(self, recorder: Recorder, alive: float) -> PipelineConfig | None:
        """Take a step's times; after the last measured one return the new configuration, on all ranks.

        `alive` is the most microbatches that this rank held under the schedule of the step.
        """
        if self.is_timing:
            self._means.append(tuple(recorder.mean(kind) for kind in _KINDS))
        self._steps += 1
        if self._steps != self._last or not self._means:
            return None
        stages = all_gather_object(all_gather_object(self._measured(alive), self._mesh.pp), self._mesh.world)[0]
        new = adapted(self._config, stages)
        log.info(
            "the schedule is made anew from steps %d to %d: forward %.3g ms, input gradient %.3g ms, weight gradient %.3g ms, "
            "microbatches a rank %s",
            *(self._first, self._last, *(statistics.median_high(s.times[i] for s in stages) for i in range(3))),
            ", ".join(f"{limit:.3g}" for limit in new.max_memory or ()),
        )
        return new

    def _measured(self, alive: float) -> Measured:
        forward, input_grad, weight_grad = (statistics.mean(column) for column in zip(*self._means, strict=True))
        size = sum(self._saved.values())
        allowed = total_bytes(self._mesh.device) * self._config.memory_percentile / 100
        room = allowed - (peak_bytes(self._mesh.device) - alive * size)
        return Measured((forward, input_grad, weight_grad), size, room)

    def _count(self, kept: Tensor) -> Tensor:
        memory = memory_of(kept)
        if memory not in self._weights:
            self._saved[memory] = kept.untyped_storage().nbytes()
        return kept
