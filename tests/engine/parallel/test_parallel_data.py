"""Reduced gradients and gathered weights against the one-process formula; what leaves when; where things lie."""

import itertools
from dataclasses import replace

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.config import DDPConfig, DistConfig, ParallelConfig
from primus.engine.parallel import weights as gathering
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.mesh import Group, Mesh, build_mesh, single_mesh
from primus.engine.parallel.sharding import Sharding
from primus.engine.parallel.slot import slot_of

OVERLAP = DDPConfig(overlap_grad_reduce=True, bucket_size=1)
REDUCTIONS = {
    "plain": DDPConfig(),
    "buckets": replace(OVERLAP, bucket_size=200),
    "average": DDPConfig(average_in_collective=True),
    "sharded": DDPConfig(use_distributed_optimizer=True),
    "sharded-buckets": replace(OVERLAP, use_distributed_optimizer=True, bucket_size=200, average_in_collective=True),
    "sharded-number": replace(OVERLAP, use_distributed_optimizer=True, bucket_size=None, num_buckets=3),
    "sharded-gather": replace(OVERLAP, use_distributed_optimizer=True, overlap_param_gather=True),
}
MICROBATCHES, STEPS = 3, 3


class Net(nn.Module):
    """Weights smaller than the rank count, one in two places, one that takes part in odd steps only, one that never does."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {
            "tied": (9, 5),
            "gain": (3,),
            "inner": (7, 5),
            "back": (5, 7),
            "odd": (5,),
            "never": (2, 2),
        }.items():
            param = nn.Parameter(0.5 * torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype))
            param.sharding = Sharding(dim=None)
            self.register_parameter(name, param)

    def forward(self, x: Tensor, step: int) -> Tensor:
        h = F.linear(x, self.tied).tanh() @ self.tied
        h = h + F.linear(F.linear(h, self.inner).relu(), self.back) * self.gain.prod()
        return (h * self.odd if step % 2 else h).square().sum()


def mesh() -> Mesh:
    return build_mesh(ParallelConfig(), DistConfig(), torch.device("cpu"))


def data(step: int, microbatch: int, rank: int) -> Tensor:
    seed = (step * 10 + microbatch) * 10 + rank
    return torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def expected_grads(step: int, n: int) -> dict[str, Tensor]:
    """Sum over ranks and microbatches by plain autograd."""
    net = Net()
    for microbatch, rank in itertools.product(range(MICROBATCHES), range(n)):
        net(data(step, microbatch, rank), step).backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in net.named_parameters()}


def accumulate(net: Net, buffers: GradientBuffers, step: int, rank: int) -> None:
    buffers.zero_grad()
    for microbatch in range(MICROBATCHES - 1):
        with buffers.no_sync():
            net(data(step, microbatch, rank), step).backward()
    net(data(step, MICROBATCHES - 1, rank), step).backward()
    buffers.finish_grad_sync()


def owned_grads(buffers: GradientBuffers) -> list[tuple[str, int, Tensor]]:
    """Each owned piece: parameter, first element within it, reduced gradient."""
    return [
        (segment.name, segment.param_start, owned.grad[segment.start : segment.start + segment.numel].clone())
        for owned in buffers.ranges()
        for segment in owned.segments
    ]


def reduce_rank(rank: int, config: DDPConfig, per_token: bool) -> list[list[tuple[str, int, Tensor]]]:
    net = Net()
    buffers = GradientBuffers([net], config, mesh(), grad_dtype=torch.float64, per_token=per_token)
    steps = []
    for step in range(STEPS):
        accumulate(net, buffers, step, rank)
        steps.append(owned_grads(buffers))
    return steps


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reduced_gradients_are_the_mean_over_ranks_and_each_element_has_its_owners(reduction: str, n: int) -> None:
    config = REDUCTIONS[reduction]
    results = run_ranks(reduce_rank, n, config, False)
    owners = 1 if config.use_distributed_optimizer else n
    for step in range(STEPS):
        for name, expected in expected_grads(step, n).items():
            counts = torch.zeros(expected.numel())
            for piece, start, values in (entry for steps in results for entry in steps[step]):
                if piece == name:
                    span = slice(start, start + values.numel())
                    counts[span] += 1
                    torch.testing.assert_close(values, expected.flatten()[span] / n, rtol=1e-12, atol=1e-12)
            assert counts.eq(owners).all(), f"{name} is owned by {counts.tolist()} ranks"


@pytest.mark.parametrize("reduction", ["plain", "sharded"])
def test_per_token_gradients_are_summed(reduction: str) -> None:
    expected = expected_grads(0, 2)
    for steps in run_ranks(reduce_rank, 2, REDUCTIONS[reduction], True):
        for name, start, values in steps[0]:
            part = expected[name].flatten()[start : start + values.numel()]
            torch.testing.assert_close(values, part, rtol=1e-12, atol=1e-12)


def train_rank(rank: int, config: DDPConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    net = Net(dtype)
    buffers = GradientBuffers([net], config, mesh(), grad_dtype=torch.promote_types(dtype, torch.float32), per_token=False)
    for step in range(STEPS):
        buffers.zero_grad()
        net(data(step, 0, rank).to(dtype), step).backward()
        buffers.finish_grad_sync()
        for owned in buffers.ranges():
            owned.model.sub_(0.01 * owned.grad.to(dtype))
        buffers.gather_params()
    buffers.finish_param_gather()
    return {name: param.detach().clone() for name, param in net.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["buckets", "sharded", "sharded-number", "sharded-gather"])
def test_weights_of_two_ranks_are_bitwise_those_of_the_plain_reduction(reduction: str, dtype: torch.dtype) -> None:
    expected = run_ranks(train_rank, 2, DDPConfig(), dtype)[0]
    assert not torch.equal(expected["tied"], Net(dtype).tied)
    for weights in run_ranks(train_rank, 2, REDUCTIONS[reduction], dtype):
        for name, weight in weights.items():
            assert weight.isfinite().all()
            assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_replicas_stay_bitwise_equal(reduction: str) -> None:
    first, *others = run_ranks(train_rank, 4, REDUCTIONS[reduction], torch.float32)
    for other in others:
        for name, weight in first.items():
            assert weight.isfinite().all()
            assert torch.equal(other[name], weight), name


def gathered_by_forward_rank(rank: int) -> bool:
    """Run a forward right after an overlapped gather was launched, and compare it with one on whole weights."""
    config = REDUCTIONS["sharded-gather"]
    net = Net()
    buffers = GradientBuffers([net], config, mesh(), grad_dtype=torch.float64, per_token=False)
    for owned in buffers.ranges():
        owned.model.fill_(rank + 1.0)
    buffers.gather_params()
    early = net(data(0, 0, 0), 1)
    buffers.finish_param_gather()
    return torch.equal(early, net(data(0, 0, 0), 1))


def test_a_forward_waits_for_the_weights_it_uses() -> None:
    assert run_ranks(gathered_by_forward_rank, 2) == [True, True]


def order_rank(rank: int) -> list[list[tuple[int, int]]]:
    """For each step: the buckets reduced, each with the number of weights that had a gradient by then."""
    net = Net()
    buffers = GradientBuffers([net], OVERLAP, mesh(), grad_dtype=torch.float64, per_token=False)
    seen: list[tuple[int, int]] = []

    def note(bucket: int, _: Tensor) -> None:
        seen.append((bucket, sum(slot_of(param).arrivals for param in net.parameters())))  # type: ignore[union-attr]

    buffers.watch(note)
    steps = []
    for _ in range(2):
        accumulate(net, buffers, 1, rank)
        steps.append(seen.copy())
        seen.clear()
    return steps


def test_buckets_leave_during_the_last_backward_in_order_once_their_number_of_additions_is_known() -> None:
    for first, second in run_ranks(order_rank, 2):
        assert [bucket for bucket, _ in first] == [bucket for bucket, _ in second] == list(range(6))
        assert all(arrived == 5 for _, arrived in first)
        # `never` is the first bucket and holds the others back: their order is part of the contract.
        assert all(arrived == 5 for _, arrived in second)


class Chain(nn.Module):
    """Two weights, the second of which gets its gradient first; the first may also be added to directly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((4, 4), value, dtype=torch.float64)) for value in (1.0, 2.0))


def early_rank(rank: int, direct_at: int) -> list[list[tuple[int, list[int]]]]:
    """For each of three steps: the buckets reduced, each with the additions that had arrived of either weight."""
    net = Chain()
    buffers = GradientBuffers([net], OVERLAP, mesh(), grad_dtype=torch.float64, per_token=False)
    slots = [slot_of(net.first), slot_of(net.second)]
    steps = []
    for step in range(3):
        seen: list[tuple[int, list[int]]] = []
        buffers.watch(lambda bucket, _, seen=seen: seen.append((bucket, [slot.arrivals for slot in slots])))
        buffers.zero_grad()
        (torch.ones(4, dtype=torch.float64) @ net.first @ net.second).sum().backward()
        if step >= direct_at:
            slots[0].add_product_(torch.ones(4, 2, dtype=torch.float64), torch.ones(2, 4, dtype=torch.float64))
        buffers.finish_grad_sync()
        steps.append(seen)
    return steps


def test_a_bucket_leaves_as_soon_as_its_gradients_are_complete() -> None:
    for first, *others in run_ranks(early_rank, 2, 3):
        assert first == [(0, [1, 1]), (1, [1, 1])]
        assert others == [[(0, [0, 1]), (1, [1, 1])]] * 2


def test_a_weight_in_two_places_is_complete_after_both_additions() -> None:
    for first, *others in run_ranks(early_rank, 2, 0):
        assert first == [(0, [2, 1]), (1, [2, 1])]
        assert others == [[(0, [0, 1]), (1, [2, 1])]] * 2


def late_rank(rank: int) -> None:
    with pytest.raises(AssertionError, match="a gradient of first arrived after its bucket was sent"):
        early_rank(rank, 1)


def test_an_addition_to_a_bucket_that_has_left_is_an_error() -> None:
    run_ranks(late_rank, 2)


def partial_rank(rank: int, config: DDPConfig) -> tuple[Tensor, Tensor]:
    groups = build_mesh(ParallelConfig(tensor_model_parallel_size=2), DistConfig(), torch.device("cpu"))
    net = Chain()
    net.first.sharding, net.second.sharding = Sharding(dim=None, sequence_parallel_grad=True), Sharding(dim=0)
    buffers = GradientBuffers([net], config, groups, grad_dtype=torch.float64, per_token=False)
    buffers.zero_grad()
    for param in net.parameters():
        slot_of(param).add_(torch.full((4, 4), 10.0**rank))  # type: ignore[union-attr]
    buffers.finish_grad_sync()
    grads = {name: values for name, _, values in owned_grads(buffers)}
    return grads.get("first", torch.empty(0)), grads.get("second", torch.empty(0))


@pytest.mark.parametrize("reduction", ["plain", "sharded", "sharded-gather"])
def test_partial_gradients_are_summed_over_tensor_parallel_ranks_and_only_those(reduction: str) -> None:
    for rank, (first, second) in enumerate(run_ranks(partial_rank, 4, REDUCTIONS[reduction])):
        # Ranks 0 and 2, 1 and 3 are replicas (mean); 0 and 1, 2 and 3 hold parts (sum).
        torch.testing.assert_close(first, torch.full_like(first, (1 + 10 + 100 + 1000) / 2), rtol=1e-12, atol=0)
        own = (10.0 + 1000.0 if rank % 2 else 1.0 + 100.0) / 2
        torch.testing.assert_close(second, torch.full_like(second, own), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_product_added_directly_is_the_gradient_of_autograd(dtype: torch.dtype) -> None:
    net = Chain().to(dtype)
    buffers = GradientBuffers([net], DDPConfig(), single_mesh(), grad_dtype=torch.float64, per_token=False)
    x, dy = (torch.randn(5, 4, dtype=torch.float64).to(dtype) for _ in range(2))
    buffers.zero_grad()
    for _ in range(2):
        F.linear(x, net.first).backward(dy)
        slot_of(net.second).add_product_(dy.t(), x)  # type: ignore[union-attr]
    buffers.finish_grad_sync()
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    for param in (net.first, net.second):
        value = slot_of(param).value  # type: ignore[union-attr]
        torch.testing.assert_close(value, 2 * dy.double().t() @ x.double(), rtol=tolerance, atol=tolerance)


def test_gradients_of_narrow_weights_add_up_in_the_wide_dtype() -> None:
    net = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    buffers = GradientBuffers([net], DDPConfig(), single_mesh(), grad_dtype=torch.float32, per_token=False)
    buffers.zero_grad()
    for value in [256.0] + [1.0] * 8:
        net(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
    buffers.finish_grad_sync()
    assert buffers.ranges()[0].grad[0] == 264.0  # in bfloat16, 256 + 1 is 256


def test_frozen_weights_stay_outside() -> None:
    net = Chain()
    net.first.requires_grad_(False)
    buffers = GradientBuffers([net], DDPConfig(), single_mesh(), grad_dtype=torch.float64, per_token=False)
    assert [segment.name for owned in buffers.ranges() for segment in owned.segments] == ["second"]
    assert slot_of(net.first) is None


def test_weights_keep_their_values_and_lie_aligned_in_reverse_order() -> None:
    net = Net()
    before = [param.detach().clone() for param in net.parameters()]
    buffers = GradientBuffers([net], DDPConfig(), single_mesh(), grad_dtype=torch.float64, per_token=False)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    (owned,) = buffers.ranges()
    assert [segment.name for segment in owned.segments] == ["never", "odd", "back", "inner", "gain", "tied"]
    assert all(segment.start % 64 == 0 for segment in owned.segments)


def layout_rank(rank: int, config: DDPConfig) -> list[tuple[int, list[str]]]:
    buffers = GradientBuffers([Net()], config, mesh(), grad_dtype=torch.float64, per_token=False)
    return [(owned.model.numel(), [segment.name for segment in owned.segments]) for owned in buffers.ranges()]


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (DDPConfig(), [384]),
        (replace(OVERLAP, bucket_size=128), [128, 128, 128]),
        (replace(OVERLAP, bucket_size=129), [192, 192]),
        (replace(OVERLAP, bucket_size=None), [384]),
        (replace(OVERLAP, bucket_size=None, num_buckets=2), [192, 192]),
        (DDPConfig(bucket_size=128), [384]),
        (DDPConfig(use_distributed_optimizer=True), [384 // 2]),
        (replace(OVERLAP, use_distributed_optimizer=True, bucket_size=129), [256 // 2, 256 // 2]),
        (DDPConfig(use_distributed_optimizer=True, pad_buckets_for_high_nccl_busbw=True), [65536 // 2]),
    ],
)
def test_buckets_close_at_their_size_and_divide_over_ranks(config: DDPConfig, sizes: list[int]) -> None:
    for ranges in run_ranks(layout_rank, 2, config):
        assert [size for size, _ in ranges] == sizes


def mixed_rank(rank: int) -> list[str]:
    net = nn.Module()
    for name, dtype in (("a", torch.float32), ("b", torch.bfloat16), ("c", torch.float32), ("d", torch.bfloat16)):
        net.register_parameter(name, nn.Parameter(torch.ones(4, dtype=dtype)))
    buffers = GradientBuffers([net], OVERLAP, mesh(), grad_dtype=torch.float32, per_token=False)
    return [segment.name for owned in buffers.ranges() for segment in owned.segments]


def test_buckets_of_several_dtypes_leave_in_order_of_their_weights() -> None:
    assert run_ranks(mixed_rank, 2) == [["d", "c", "b", "a"]] * 2


class Chunk(nn.Module):
    """One weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))


def released_rank(rank: int, config: DDPConfig) -> list[list[int]]:
    """Return the chunks reduced after the gradients of chunks 2, 1, 0 are complete and after 2 and 0 are released."""
    chunks = [Chunk() for _ in range(3)]
    groups = replace(mesh(), pp=Group((0, 1), 0))
    buffers = GradientBuffers(chunks, config, groups, grad_dtype=torch.float64, per_token=False)
    left: list[int] = []
    buffers.watch(lambda bucket, _: left.append(2 - bucket))
    seen: list[list[int]] = []
    for _ in range(2):
        seen.clear()
        left.clear()
        buffers.zero_grad()
        for chunk in reversed(chunks):
            slot_of(chunk.weight).add_(torch.ones(4, 4))  # type: ignore[union-attr]
            seen.append(left.copy())
        for number in (2, 0):
            buffers.release(number)
            seen.append(left.copy())
        buffers.finish_grad_sync()
        seen.append(left.copy())
    return seen


def test_an_aligned_reduction_waits_until_its_chunk_is_released() -> None:
    aligned = [[], [], [], [2], [2], [2, 1, 0]]  # buckets leave in order: 0 waits for 1
    assert run_ranks(released_rank, 2, OVERLAP) == [aligned] * 2
    at_once = [[2], [2, 1], *[[2, 1, 0]] * 4]
    assert run_ranks(released_rank, 2, replace(OVERLAP, align_grad_reduce=False)) == [at_once] * 2


def gathered_ahead_rank(rank: int, config: DDPConfig) -> list[int]:
    """Return how many chunks are being gathered after the update, once chunk 2 is due, and once a forward needs chunk 3."""
    chunks = [nn.Linear(4, 4, bias=False) for _ in range(4)]
    buffers = GradientBuffers(chunks, config, mesh(), grad_dtype=torch.float32, per_token=False)
    started: list[int] = []
    start = gathering.start_all_gather_
    gathering.start_all_gather_ = lambda x, group: (started.append(1), start(x, group))[1]
    buffers.gather_params()
    seen = [len(started)]
    buffers.gather_ahead(2)
    seen.append(len(started))
    chunks[3](torch.ones(1, 4))
    seen.append(len(started))
    buffers.finish_param_gather()
    return [*seen, len(started)]


def test_an_aligned_gather_begins_when_it_is_due_or_needed() -> None:
    config = REDUCTIONS["sharded-gather"]
    assert run_ranks(gathered_ahead_rank, 2, config) == [[2, 3, 4, 4]] * 2
    assert run_ranks(gathered_ahead_rank, 2, replace(config, align_param_gather=False)) == [[4, 4, 4, 4]] * 2
