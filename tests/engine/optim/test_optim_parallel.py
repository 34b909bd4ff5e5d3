"""Three steps on many ranks equal three steps on one in float64: norms, counts, weights and state, by whole tensors."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from ranks import layouts_of, run_ranks
from torch import Tensor

from primus.engine.config import (
    AttentionConfig,
    DDPConfig,
    DistConfig,
    InitConfig,
    MixedPrecisionConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PositionConfig,
    SchedulerConfig,
)
from primus.engine.model.builder import build_model
from primus.engine.optim import Optimizer, build_optimizer
from primus.engine.parallel.data import GradientBuffers
from primus.engine.parallel.layout import Layout
from primus.engine.parallel.mesh import Mesh, build_mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Shards, parameter_shards, sharding_of
from primus.engine.precision import dtype_of

BATCH, SEQ, VOCAB = 4, 8, 61
MODEL = ModelConfig(
    num_layers=2,
    hidden_size=16,
    ffn_hidden_size=24,
    seq_length=SEQ,
    vocab_size=VOCAB,
    make_vocab_size_divisible_by=1,
    add_bias_linear=True,
    attention=AttentionConfig(num_attention_heads=4, num_query_groups=4, kv_channels=4),
    position=PositionConfig(type="learned_absolute", max_position_embeddings=SEQ),
    init=InitConfig(method_std=0.3),
)
ADAM = OptimizerConfig(
    lr=0.05,
    min_lr=0.001,
    decoupled_lr=0.02,
    head_lr_mult=0.5,
    clip_grad=0.5,
    log_num_zeros_in_grad=True,
    log_params_norm=True,
)
SCHEDULE = SchedulerConfig(
    lr_decay_steps=40,
    start_weight_decay=0.1,
    end_weight_decay=0.2,
    weight_decay_incr_style="linear",
    weight_decay_incr_steps=40,
)
REDUCTIONS = {
    "replicated": DDPConfig(),
    "sharded": DDPConfig(use_distributed_optimizer=True),
    "overlapped": DDPConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True, bucket_size=1000
    ),
}

Parts = dict[str, list[tuple[tuple[int, ...], tuple[int, ...], Tensor]]]
"""By tensor name: global shape, offsets and values of this rank's rectangles."""


class Run:
    """One rank's model, gradients and optimizer."""

    def __init__(self, mesh: Mesh, model: ModelConfig, optimizer: OptimizerConfig, ddp: DDPConfig, precision: Any) -> None:
        self.mesh, self.dtype = mesh, dtype_of(precision.params_dtype)
        (self.model,) = build_model(
            model, mesh=mesh, dtype=self.dtype, device="cpu", seed=7, streams=RandomStreams(7, mesh.coordinates)
        )
        grad_dtype = torch.promote_types(self.dtype, torch.float32)
        self.buffers = GradientBuffers([self.model], ddp, mesh, grad_dtype=grad_dtype, per_token=False)
        self.optimizer: Optimizer = build_optimizer(
            optimizer, precision, scheduler=SCHEDULE, buffers=self.buffers, mesh=mesh, check_finite=True
        )

    def step(self, iteration: int) -> tuple[Any, ...]:
        """Train on this rank's samples of the global batch, two microbatches a rank."""
        generator = torch.Generator().manual_seed(iteration)
        tokens, labels = torch.randint(VOCAB, (2, BATCH * 2, SEQ), generator=generator)
        mine = slice(self.mesh.dp.index, None, self.mesh.dp.size)
        self.buffers.zero_grad()
        first, second = zip(*(x[mine].chunk(2) for x in (tokens, labels)), strict=True)
        with self.buffers.no_sync():
            self._backward(*first)
        self._backward(*second)
        self.buffers.finish_grad_sync()
        update = self.optimizer.step()
        self.optimizer.advance_schedule(BATCH * 2)
        return update.succeeded, update.grad_norm, update.num_zeros, update.params_norm

    def _backward(self, tokens: Tensor, labels: Tensor) -> None:
        positions = torch.arange(SEQ).expand_as(tokens)
        mask = torch.ones(tokens.shape)
        loss = self.model(tokens, positions, None, labels, mask) / tokens.numel() / 2
        self.optimizer.scale_loss(loss).backward()

    def parts(self) -> Parts:
        """Return this rank's rectangles of weights and state."""
        self.buffers.finish_param_gather()
        shards: dict[str, Shards] = {
            name: parameter_shards(param.data, sharding_of(param), self.mesh) for name, param in self.model.named_parameters()
        }
        shards |= self.optimizer.state_shards()
        return {
            name: [(shard.global_shape, chunk.offsets, chunk.data.clone()) for chunk in shard.chunks]
            for name, shard in shards.items()
        }


def train(mesh: Mesh, *configs: Any, steps: int = 3) -> tuple[list[tuple[Any, ...]], Parts]:
    run = Run(mesh, *configs)
    return [run.step(iteration) for iteration in range(steps)], run.parts()


def train_rank(
    rank: int, layout: Layout, model: ModelConfig, *configs: Any, steps: int = 3
) -> tuple[list[tuple[Any, ...]], Parts]:
    parallel = replace(model.parallel, tensor_model_parallel_size=layout.tensor)
    mesh = build_mesh(parallel, DistConfig(), torch.device("cpu"))
    return train(mesh, replace(model, parallel=parallel), *configs, steps=steps)


def whole(all_parts: list[Parts]) -> dict[str, Tensor]:
    """Put the rectangles of all ranks together; every element must be there, and replicas must be bit-equal."""
    tensors: dict[str, Tensor] = {}
    for name in {name for parts in all_parts for name in parts}:
        pieces = [piece for parts in all_parts for piece in parts.get(name, [])]
        shape, dtype = pieces[0][0], pieces[0][2].dtype
        tensors[name] = torch.full(shape, torch.nan, dtype=dtype)
        for _, offsets, data in pieces:
            place = tensors[name][tuple(slice(o, o + n) for o, n in zip(offsets, data.shape, strict=True))]
            known = ~place.isnan()
            assert torch.equal(place[known], data[known]), f"replicas of {name} differ"
            place.copy_(data)
        assert not tensors[name].isnan().any(), f"{name} has holes"
    return tensors


def check_equal(results: list[Any], expected: tuple[list[tuple[Any, ...]], Parts]) -> None:
    for steps, _ in results:
        for ours, theirs in zip(steps, expected[0], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12)
    ours, theirs = whole([parts for _, parts in results]), whole([expected[1]])
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


FLOAT64 = MixedPrecisionConfig(params_dtype="float64", grad_dtype="float64")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("layout", [*layouts_of(2), *layouts_of(4)], ids=lambda x: f"tp{x.tensor}-of-{x.world_size}")
def test_adam_on_ranks_equals_one_process(layout: Layout, reduction: str) -> None:
    expected = train(single_mesh(), MODEL, ADAM, REDUCTIONS["replicated"], FLOAT64)
    check_equal(run_ranks(train_rank, layout.world_size, layout, MODEL, ADAM, REDUCTIONS[reduction], FLOAT64), expected)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_sequence_parallel_with_sharded_state_equals_one_process(tied: bool) -> None:
    model = replace(MODEL, tie_embeddings=tied)
    optimizer = replace(ADAM, head_lr_mult=1.0)
    expected = train(single_mesh(), model, optimizer, DDPConfig(), FLOAT64)
    model = replace(model, parallel=ParallelConfig(sequence_parallel=True))
    layout = Layout(world_size=4, tensor=2)
    check_equal(run_ranks(train_rank, 4, layout, model, optimizer, REDUCTIONS["sharded"], FLOAT64), expected)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_sgd_on_ranks_equals_one_process(reduction: str) -> None:
    sgd = replace(ADAM, optimizer="sgd", lr=0.5, decoupled_lr=None)
    expected = train(single_mesh(), MODEL, sgd, DDPConfig(), FLOAT64)
    layout = Layout(world_size=2)
    check_equal(run_ranks(train_rank, 2, layout, MODEL, sgd, REDUCTIONS[reduction], FLOAT64), expected)


def test_ranks_without_a_share_of_a_small_model_take_part() -> None:
    tiny = replace(
        MODEL,
        num_layers=1,
        hidden_size=4,
        ffn_hidden_size=4,
        vocab_size=VOCAB,
        attention=AttentionConfig(num_attention_heads=2, num_query_groups=2, kv_channels=2),
    )
    ddp = replace(REDUCTIONS["overlapped"], bucket_size=1)
    expected = train(single_mesh(), tiny, ADAM, DDPConfig(), FLOAT64)
    check_equal(run_ranks(train_rank, 4, Layout(world_size=4), tiny, ADAM, ddp, FLOAT64), expected)


def gather_rank(rank: int, ddp: DDPConfig) -> list[str]:
    """Return the weights that a forward has used without waiting for their gather."""
    run = Run(build_mesh(ParallelConfig(), DistConfig(), torch.device("cpu")), MODEL, ADAM, ddp, FLOAT64)
    run.step(0)
    tokens = torch.randint(VOCAB, (1, SEQ))
    with torch.no_grad():
        run.model(tokens, torch.arange(SEQ).expand_as(tokens), None, tokens, torch.ones(tokens.shape))
    names = {param: name for name, param in run.model.named_parameters()}
    return [names[place.param] for bucket, works in run.buffers._weights._works.items() if works for place in bucket.places]


def test_a_forward_waits_for_every_overlapped_gather() -> None:
    assert run_ranks(gather_rank, 2, replace(REDUCTIONS["overlapped"], bucket_size=1)) == [[], []]


def overflow_rank(rank: int, layout: Layout, ddp: DDPConfig, precision: MixedPrecisionConfig) -> list[Any]:
    """Put an infinite gradient on rank 1 in the second of three steps."""
    mesh = build_mesh(ParallelConfig(tensor_model_parallel_size=layout.tensor), DistConfig(), torch.device("cpu"))
    model = replace(MODEL, parallel=ParallelConfig(tensor_model_parallel_size=layout.tensor))
    run = Run(mesh, model, replace(ADAM, clip_grad=0.0), ddp, precision)
    table = dict(run.model.named_parameters())["embedding.word_embeddings.weight"]
    handle = None
    outcomes: list[Any] = []
    for iteration in range(3):
        if iteration == 1 and rank == 1:
            handle = table.register_hook(lambda grad: grad * torch.inf)
        before = [p.detach().clone() for p in run.model.parameters()]
        succeeded = run.step(iteration)[0]
        run.buffers.finish_param_gather()
        moved = any(not torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
        outcomes.append((succeeded, moved, run.optimizer.loss_scale, run.optimizer.num_updates))
        if handle:
            handle.remove()
    return outcomes


@pytest.mark.parametrize("reduction", ["replicated", "sharded"])
@pytest.mark.parametrize("layout", layouts_of(2), ids=lambda x: f"tp{x.tensor}")
def test_an_overflow_on_one_rank_skips_the_step_on_all(layout: Layout, reduction: str) -> None:
    precision = MixedPrecisionConfig(params_dtype="float16", initial_loss_scale=256.0, hysteresis=1, loss_scale_window=100)
    for outcomes in run_ranks(overflow_rank, 2, layout, REDUCTIONS[reduction], precision):
        assert outcomes == [(True, True, 256.0, 1), (False, False, 128.0, 1), (True, True, 128.0, 2)]


@pytest.mark.parametrize("reduction", ["sharded", "overlapped"])
def test_bf16_with_sharded_main_weights_equals_replicated(reduction: str) -> None:
    """After one step: main weights that differ in the last fp32 bit may round to neighbouring bf16 values, which the next
    forward sees."""
    (expected, weights), (steps, shards) = (bf16_run(kind, steps=1) for kind in ("replicated", reduction))
    assert any(name.startswith("optimizer.state.main_param.") for name in shards)
    assert steps[0] == pytest.approx(expected[0], rel=1e-6)
    for name in (name for name in weights if name.startswith("optimizer.state.")):
        torch.testing.assert_close(shards[name], weights[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["sharded", "overlapped"])
def test_bf16_weights_stay_the_rounded_main_weights(reduction: str) -> None:
    _, tensors = bf16_run(reduction, steps=3)
    for name, tensor in tensors.items():
        if not name.startswith("optimizer.state."):
            assert torch.equal(tensor, tensors[f"optimizer.state.main_param.{name}"].bfloat16())


def bf16_run(reduction: str, *, steps: int) -> tuple[list[tuple[Any, ...]], dict[str, Tensor]]:
    """Return norms and counts of each step on two ranks, and the whole tensors."""
    precision = MixedPrecisionConfig(params_dtype="bfloat16")
    rank = partial(train_rank, steps=steps)
    results = run_ranks(rank, 2, Layout(world_size=2), MODEL, ADAM, REDUCTIONS[reduction], precision)
    return results[0][0], whole([parts for _, parts in results])
