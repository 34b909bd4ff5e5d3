"""What ranks hold of sharded gradients and weights, and when they exchange it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from primus.engine.config import DDPConfig, DistConfig, ParallelConfig
from primus.engine.parallel import gradients, weights
from primus.engine.parallel.buckets import Unit
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import build_mesh

DEPTH, WIDTH = 4, 16
ZERO2 = DDPConfig(
    use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads", bucket_size=1
)
ZERO3 = replace(ZERO2, data_parallel_sharding_strategy="optim_grads_params")
AHEAD = replace(ZERO3, overlap_grad_reduce=True, overlap_param_gather=True)


class Tower(nn.Module):
    """Equal layers, one unit each."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64, device=device) for _ in range(DEPTH))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()


def built(config: DDPConfig, tower: Tower, **more: Any) -> GradientBuffers:
    mesh = build_mesh(ParallelConfig(), DistConfig(), torch.device("cpu"))
    units = [[Unit(modules=(layer,)) for layer in tower.layers]]
    return GradientBuffers([tower], config, mesh, grad_dtype=torch.float64, per_token=False, units=units, **more)


def step(tower: Tower, buffers: GradientBuffers) -> None:
    buffers.zero_grad()
    for _ in range(2):
        with buffers.no_sync():
            tower(torch.ones(2, WIDTH, dtype=torch.float64, requires_grad=True)).backward()
    buffers.finish_grad_sync()
    buffers.gather_params()


def held(buffers: GradientBuffers) -> tuple[int, int]:
    """Return how many buckets have memory for whole weights and for whole gradients."""
    whole = [bucket.model.untyped_storage().nbytes() > 0 for bucket in buffers._buckets]
    return sum(whole), sum(bucket.grad.untyped_storage().nbytes() > 0 for bucket in buffers._buckets)


def holding_rank(rank: int, config: DDPConfig) -> list[tuple[int, int]]:
    """Return what is held after construction, before each layer's forward, at each reduction, and after the step."""
    tower = Tower()
    buffers = built(config, tower)
    seen = [held(buffers)]
    for layer in tower.layers:
        layer.register_forward_pre_hook(lambda *_: seen.append(held(buffers)))
    buffers.watch(lambda *_: seen.append(held(buffers)))
    step(tower, buffers)
    assert sum(owned.grad.numel() for owned in buffers.ranges()) == DEPTH * WIDTH * WIDTH // 2
    assert sum(owned.model.numel() for owned in buffers.ranges()) == DEPTH * WIDTH * WIDTH // 2
    return [*seen, held(buffers)]


def test_whole_gradients_live_from_backward_to_reduction() -> None:
    for start, *during, end in run_ranks(holding_rank, 2, ZERO2):
        assert start == end == (DEPTH, 0)
        assert during == ([(DEPTH, 0)] * DEPTH + [(DEPTH, 1)] * DEPTH) * 2


def test_whole_weights_live_while_their_layer_runs() -> None:
    for start, *during, end in run_ranks(holding_rank, 2, ZERO3):
        assert start == end == (0, 0)
        forwards, backwards = during[:DEPTH], during[DEPTH : 2 * DEPTH]
        assert forwards == [(1, 0)] * DEPTH
        # A weight may be given back before its own gradient arrives: autograd is done with it.
        assert all(whole <= 1 and gradients == 1 for whole, gradients in backwards)
        assert len(during) == 4 * DEPTH


@pytest.mark.parametrize(("ahead", "most"), [(1, 1), (WIDTH * WIDTH, 2), (3 * WIDTH * WIDTH, 4)])
def test_as_much_is_gathered_ahead_as_the_unit_size_says(ahead: int, most: int) -> None:
    for _, *during, _ in run_ranks(holding_rank, 2, replace(AHEAD, suggested_communication_unit_size=ahead)):
        forwards = [weights for weights, _ in during[:DEPTH]]
        assert forwards == [min(most, DEPTH - i) for i in range(DEPTH)]
        assert max(weights for weights, _ in during) == most


def exchange_rank(rank: int, config: DDPConfig) -> list[str]:
    """Return the order of gathers and reductions of a step, by bucket."""
    tower = Tower()
    buffers = built(config, tower)
    numbers = {id(tensor): bucket.number for bucket in buffers._buckets for tensor in (bucket.model, bucket.grad)}
    log: list[str] = []
    for module, name, label in (
        (weights, "start_all_gather_", "gather"),
        (gradients, "start_reduce_scatter_", "reduce"),
    ):
        start = getattr(module, name)
        setattr(
            module,
            name,
            lambda x, group, start=start, label=label: (log.append(f"{label} {numbers[id(x)]}"), start(x, group))[1],
        )
    step(tower, buffers)
    return log


def test_a_layer_is_gathered_for_its_forward_and_for_its_backward_and_reduced_in_every_microbatch() -> None:
    # Buckets are numbered in the order of the backward.
    forward = [f"gather {number}" for number in reversed(range(DEPTH))]
    backward = [f"{what} {number}" for number in range(DEPTH) for what in ("gather", "reduce")]
    assert run_ranks(exchange_rank, 2, ZERO3) == [(forward + backward) * 2] * 2
    assert run_ranks(exchange_rank, 2, ZERO2)[0] == [f"reduce {number}" for number in range(DEPTH)] * 2 + [
        f"gather {number}" for number in reversed(range(DEPTH))
    ]


def division_rank(rank: int, config: DDPConfig) -> tuple[float, float]:
    """Return the largest element handed to a collective, and of the shard afterwards, for gradients of one."""
    tower = Tower()
    buffers = built(config, tower)
    sent: list[float] = []
    start = gradients.start_reduce_scatter_
    gradients.start_reduce_scatter_ = lambda x, group: (sent.append(float(x.max())), start(x, group))[1]
    buffers.zero_grad()
    tower.layers[0].weight.grad_slot.add_(torch.ones(WIDTH, WIDTH))
    buffers.finish_grad_sync()
    return max(sent), max(float(owned.grad.max()) for owned in buffers.ranges())


def test_the_division_is_part_of_the_addition_or_a_pass_before_the_reduction() -> None:
    assert run_ranks(division_rank, 2, ZERO2) == [(1.0, 1.0)] * 2
    assert run_ranks(division_rank, 2, replace(ZERO2, gradient_reduce_div_fusion=False)) == [(0.5, 1.0)] * 2


def meta_rank(rank: int) -> bool:
    tower = Tower("meta")
    parameters = list(tower.parameters())
    assert all(parameter.is_meta for parameter in parameters)
    most = 0

    def fill(name: str, parameter: nn.Parameter) -> None:
        nonlocal most
        most = max(most, sum(p.untyped_storage().nbytes() for p in tower.parameters() if not p.is_meta))
        parameter.data.fill_(float(name.split(".")[1]))

    buffers = built(ZERO3, tower, fill=fill)
    assert most == WIDTH * WIDTH * 8, "more than one layer was whole"
    assert parameters == list(tower.parameters()), "parameters are the objects that they were"
    shards = buffers.weight_shards()
    return all((chunk.data == float(name.split(".")[1])).all() for name, part in shards.items() for chunk in part.chunks)


def test_weights_on_the_meta_device_are_filled_one_unit_at_a_time() -> None:
    assert run_ranks(meta_rank, 2) == [True, True]
