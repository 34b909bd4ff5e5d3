"""`build_optimizer` makes the optimizer of a run from its configuration and the flat gradients."""

from primus.engine.config import MixedPrecisionConfig, OptimizerConfig, SchedulerConfig
from primus.engine.optim.adam import Adam
from primus.engine.optim.flat import FlatRange, Piece
from primus.engine.optim.grouping import group_of
from primus.engine.optim.optimizer import Optimizer
from primus.engine.optim.rule import UpdateRule
from primus.engine.optim.schedule import OptParamScheduler
from primus.engine.optim.sgd import SGD
from primus.engine.parallel.buckets import OwnedRange, Segment
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import flat_range_shards, sharding_of
from primus.engine.precision import build_loss_scaler

__all__ = ["build_optimizer"]


def build_optimizer(
    config: OptimizerConfig,
    precision: MixedPrecisionConfig,
    *,
    scheduler: SchedulerConfig,
    buffers: DataParallel,
    mesh: Mesh,
    check_finite: bool = False,
    first_chunk_apart: bool = False,
) -> Optimizer:
    """Build the optimizer over the ranges of `buffers` that this rank updates; weights must be filled.

    `check_finite` makes a NaN or infinite gradient norm an error; under loss scaling it skips the step instead.
    `first_chunk_apart` gathers the first model chunk while the others are still updated.
    """
    rule = _rule(config)
    ranges = [_flat_range(owned, config, mesh, num_states=len(rule.state_names)) for owned in buffers.ranges()]
    return Optimizer(
        config,
        rule=rule,
        ranges=ranges,
        scheduler=OptParamScheduler(scheduler, config),
        scaler=build_loss_scaler(precision),
        buffers=buffers,
        mesh=mesh,
        check_finite=check_finite,
        first_chunk_apart=first_chunk_apart,
    )


def _rule(config: OptimizerConfig) -> UpdateRule:
    if config.optimizer == "sgd":
        return SGD(momentum=config.sgd_momentum)
    return Adam(beta1=config.adam_beta1, beta2=config.adam_beta2, eps=config.adam_eps)


def _flat_range(owned: OwnedRange, config: OptimizerConfig, mesh: Mesh, *, num_states: int) -> FlatRange:
    pieces = [_piece(segment, owned, config, mesh) for segment in owned.segments]
    return FlatRange(model=owned.model, grad=owned.grad, pieces=pieces, num_states=num_states, chunk=owned.chunk)


def _piece(segment: Segment, owned: OwnedRange, config: OptimizerConfig, mesh: Mesh) -> Piece:
    sharding = sharding_of(segment.param)
    flat = owned.model[segment.start : segment.start + segment.numel]
    real = flat_range_shards(flat, segment.param_start, segment.param.shape, sharding, mesh)
    # What every tensor-parallel rank holds whole is counted on the first of them.
    sharers = mesh.etp if sharding.is_expert else mesh.tp
    counts = (sharding.dim is not None or sharers.index == 0) and not sharding.is_copy
    return Piece(
        name=segment.name,
        param=segment.param,
        sharding=sharding,
        group=group_of(segment.name, segment.param, sharding, config),
        num_counted=sum(chunk.data.numel() for chunk in real.chunks) if counts else 0,
        start=segment.start,
        param_start=segment.param_start,
        numel=segment.numel,
    )
