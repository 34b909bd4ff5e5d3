"""`Pipeline`: this rank's part of every step, by the schedule that the configuration names."""

from functools import cache

from primus.engine.config import ConfigContainer
from primus.engine.config.pipeline import PipelineConfig
from primus.engine.model.builder import residual_dtype
from primus.engine.parallel.mesh import Mesh
from primus.engine.pipeline.links import Links
from primus.engine.pipeline.runtime import Forward, Gradients, execute
from primus.engine.pipeline.schedules import RankPlan, forwards, rank_plan, schedule_of
from primus.engine.precision import dtype_of

__all__ = ["Pipeline", "build_pipeline"]


class Pipeline:
    """Runs steps and evaluations; plans are made once for each number of microbatches."""

    def __init__(self, config: PipelineConfig, mesh: Mesh, links: Links | None = None) -> None:
        """`links` is needed for more than one pipeline rank."""
        self._config, self._mesh, self._links = config, mesh, links
        self._training, self._evaluation = cache(self._training_plan), cache(self._evaluation_plan)

    def train(self, num_microbatches: int, forward: Forward, gradients: Gradients) -> None:
        """Run all forwards and backwards of a step; every rank of the pipeline calls it."""
        execute(self._training(num_microbatches), forward=forward, gradients=gradients, links=self._links)

    def evaluate(self, num_microbatches: int, forward: Forward) -> None:
        """Run forwards, without gradients."""
        execute(self._evaluation(num_microbatches), forward=forward, gradients=None, links=self._links)

    def _training_plan(self, num_microbatches: int) -> RankPlan:
        return rank_plan(schedule_of(self._config, self._mesh.pp.size, num_microbatches), self._mesh.pp.index)

    def _evaluation_plan(self, num_microbatches: int) -> RankPlan:
        config, ranks = self._config, self._mesh.pp.size
        return rank_plan(forwards(config.placement, ranks, config.num_chunks, num_microbatches), self._mesh.pp.index)


def build_pipeline(config: ConfigContainer, mesh: Mesh) -> Pipeline:
    """Return the pipeline of a run."""
    model, pipeline = config.model, config.model.pipeline
    if mesh.pp.size == 1:
        return Pipeline(pipeline, mesh)
    sequence = model.seq_length // mesh.cp.size // (mesh.tp.size if model.parallel.sequence_parallel else 1)
    links = Links(
        mesh,
        (sequence, config.train.micro_batch_size, model.hidden_size),
        residual_dtype(model, dtype_of(config.mixed_precision.params_dtype)),
        posts_ahead=pipeline.communication_method == "async_p2p",
    )
    return Pipeline(pipeline, mesh, links)
