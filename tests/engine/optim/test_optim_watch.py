"""The spike rule."""

import logging
import math

import pytest
import torch
from ranks import layouts_of, run_ranks
from torch import nn

from primus.engine.config import DDPConfig, DistConfig, MixedPrecisionConfig, OptimizerConfig, ParallelConfig, SchedulerConfig
from primus.engine.optim import build_optimizer
from primus.engine.optim.watch import GradientWatch, SpikeWatch
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.mesh import build_mesh
from primus.engine.parallel.sharding import Sharding
from primus.errors import RunError


def learned() -> SpikeWatch:
    watch = SpikeWatch()
    for value in [1.0] * 99 + [-2.0]:
        assert not watch.check("loss", value)
    return watch


def test_spikes_are_ten_times_the_largest_of_the_first_hundred() -> None:
    watch = learned()
    assert [watch.check("loss", value) for value in (19.9, 20.0, math.nan, 25.0, 19.0, -20.0)] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]


def test_the_threshold_is_frozen() -> None:
    watch = learned()
    watch.check("loss", 500.0)
    assert watch.check("loss", 20.0)


def test_nothing_is_a_spike_while_learning_and_non_finite_values_do_not_count() -> None:
    watch = SpikeWatch(num_samples=2)
    assert [watch.check("grads", v) for v in (1.0, math.inf, math.nan, 1e9, 1e11)] == [False, False, False, False, True]


def test_contexts_do_not_share_a_threshold() -> None:
    watch = SpikeWatch(num_samples=1)
    watch.check("loss", 1.0)
    watch.check("grads", 100.0)
    assert watch.check("loss", 50.0)
    assert not watch.check("grads", 50.0)


def test_the_warning_names_context_value_and_place(caplog: pytest.LogCaptureFixture) -> None:
    watch = SpikeWatch(num_samples=1)
    watch.check("loss", 2.0)
    with caplog.at_level(logging.WARNING, logger="primus"):
        watch.check("loss", 40.0, "iteration 7")
    assert "loss 40 (iteration 7)" in caplog.text


def bad_gradient_on_last_rank(rank: int, layout: Layout, ddp: DDPConfig, dim: int | None) -> str:
    """Return the message of the RunError; clipping is off, so that the norm is wanted for nothing else."""
    mesh = build_mesh(ParallelConfig(tensor_model_parallel_size=layout.tensor), DistConfig(), torch.device("cpu"))
    model = nn.Module()
    for name in ("first", "second"):
        param = nn.Parameter(torch.ones(8, 8))
        param.sharding = Sharding(dim=dim)
        model.register_parameter(name, param)
    buffers = GradientBuffers([model], ddp, mesh, grad_dtype=torch.float32, per_token=False)
    watch = GradientWatch(buffers, mesh, check_finite=True)
    schedule = SchedulerConfig(lr_decay_steps=10, weight_decay_incr_steps=10)
    optimizer = build_optimizer(
        OptimizerConfig(lr=0.1, clip_grad=0.0),
        MixedPrecisionConfig(params_dtype="float32"),
        scheduler=schedule,
        buffers=buffers,
        mesh=mesh,
        check_finite=True,
    )
    buffers.zero_grad()
    if rank == mesh.world.size - 1:
        model.first.grad_slot.add_(torch.full((8, 8), math.nan))
    buffers.finish_grad_sync()
    with pytest.raises(RunError) as failure:
        optimizer.step(origin=watch.origin)
    assert torch.equal(model.second, torch.ones(8, 8))
    return str(failure.value)


@pytest.mark.parametrize("is_sharded", [False, True], ids=["replicated", "sharded"])
@pytest.mark.parametrize(
    "layout", [Layout(world_size=1), *layouts_of(2), *layouts_of(4)], ids=lambda x: f"tp{x.tensor}-of-{x.world_size}"
)
@pytest.mark.parametrize("dim", [0, None], ids=["divided-weights", "whole-weights"])
def test_every_rank_stops_and_names_the_rank_with_the_bad_gradient(layout: Layout, is_sharded: bool, dim: int | None) -> None:
    n = layout.world_size
    messages = run_ranks(bad_gradient_on_last_rank, n, layout, DDPConfig(use_distributed_optimizer=is_sharded), dim)
    assert messages == [f"found NaN in the gradient norm on rank {n - 1} (bucket 0); the weights were not updated"] * n


def large_gradients(rank: int) -> list[str]:
    """Return the warnings of a bucket whose gradient grows elevenfold after the threshold is known."""
    mesh = build_mesh(ParallelConfig(), DistConfig(), torch.device("cpu"))
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(4))
    buffers = GradientBuffers([model], DDPConfig(), mesh, grad_dtype=torch.float32, per_token=False)
    GradientWatch(buffers, mesh, check_finite=False, spikes=SpikeWatch(num_samples=1))
    records: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("primus.engine.optim.watch").addHandler(handler)
    for value in (1.0, 11.0 if rank == 1 else 1.0):
        buffers.zero_grad()
        model.weight.grad_slot.add_(torch.full((4,), value))
        buffers.finish_grad_sync()
    return records


def test_large_gradients_are_reported_by_the_rank_that_has_them() -> None:
    quiet, loud = run_ranks(large_gradients, 2)
    assert quiet == []
    assert len(loud) == 1
    assert loud[0].startswith("unexpectedly large grads 22 (bucket 0, rank 1)")
