"""However experts and their matrices lie on ranks, and however tokens travel there, a model is the one of a single process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from primus.engine.config import DistConfig
from primus.engine.config.attention import AttentionConfig
from primus.engine.config.model import InitConfig, ModelConfig, ParallelConfig
from primus.engine.config.moe import MoEConfig
from primus.engine.config.position import PositionConfig
from primus.engine.model.builder import build_model
from primus.engine.model.gpt import GPTModel
from primus.engine.model.moe.layer import MoELayer
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.exchange import Exchange
from primus.engine.parallel.lanes import Lane
from primus.engine.parallel.mesh import Mesh, build_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import global_parameters, parameter_shards, sharding_of

S, BATCH, V = 8, 4, 64
KINDS = ("allgather", "alltoall", "flex")
Shard = list[tuple[tuple[int, ...], Tensor]]


def config_of(parallel: ParallelConfig, kind: Any = "alltoall", **moe: Any) -> ModelConfig:
    return ModelConfig(
        num_layers=2,
        hidden_size=16,
        ffn_hidden_size=24,
        seq_length=S,
        vocab_size=V,
        attention=AttentionConfig(num_attention_heads=4, num_query_groups=2, kv_channels=4),
        position=PositionConfig(max_position_embeddings=S),
        parallel=parallel,
        init=InitConfig(method_std=0.5),
        moe=MoEConfig(
            num_experts=4,
            layers=(0, 1),
            ffn_hidden_size=12,
            shared_expert_intermediate_size=8,
            token_dispatcher=kind,
            **{"router_topk": 2, **moe},
        ),
    )


def build(config: ModelConfig) -> tuple[GPTModel, Mesh]:
    mesh = build_mesh(config.parallel, DistConfig(backend="gloo"), torch.device("cpu"))
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config, mesh=mesh, dtype=torch.float64, device="cpu", seed=3, streams=streams)
    return model, mesh


def losses_of(model: GPTModel, mesh: Mesh) -> Tensor:
    tokens, labels = torch.randint(0, V, (2, BATCH, S), generator=torch.Generator().manual_seed(5))
    size = BATCH // mesh.dp.size
    own = slice(mesh.dp.index * size, (mesh.dp.index + 1) * size)
    losses: Tensor = model(tokens[own], torch.arange(S).expand(size, S), labels_BS=labels[own])
    return losses


def gradients(_rank: int, parallel: ParallelConfig, kinds: tuple[str, ...]) -> list[dict[str, tuple[Any, Shard]]]:
    found = []
    for kind in kinds:
        model, mesh = build(config_of(parallel, kind))
        losses_of(model, mesh).sum().backward()
        shards = {}
        for name, parameter in global_parameters([model]):
            sharding = sharding_of(parameter)
            assert parameter.grad is not None, name
            all_reduce_(parameter.grad, mesh.expt_dp if sharding.is_expert else mesh.dp_cp)
            if sharding.sequence_parallel_grad:
                all_reduce_(parameter.grad, mesh.tp)
            part = parameter_shards(parameter.grad, sharding, mesh)
            shards[name] = part.global_shape, [(chunk.offsets, chunk.data.clone()) for chunk in part.chunks]
        found.append(shards)
    return found


def joined(ranks: list[dict[str, tuple[Any, Shard]]]) -> dict[str, Tensor]:
    whole: dict[str, Tensor] = {}
    for shards in ranks:
        for name, (shape, chunks) in shards.items():
            tensor = whole.setdefault(name, torch.full(shape, float("nan"), dtype=torch.float64))
            for offsets, data in chunks:
                tensor[tuple(slice(o, o + n) for o, n in zip(offsets, data.shape, strict=True))] = data
    return whole


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return joined([run_ranks(gradients, 1, ParallelConfig(), ("alltoall",))[0][0]])


LAYOUTS = {
    "ep2": (2, {"expert_model_parallel_size": 2}),
    "ep2_dp4": (4, {"expert_model_parallel_size": 2}),
    "tp2_etp2": (2, {"tensor_model_parallel_size": 2}),
    "tp2_etp1": (2, {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1}),
    "tp2_ep2_etp1": (
        2,
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    ),
    "tp2_ep2_etp2": (4, {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}),
    "tp2_ep4_etp1": (
        4,
        {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
    ),
    "ep2_etp2": (4, {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 2}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_way_has_one_process_gradients(layout: str, alone: dict[str, Tensor]) -> None:
    ranks, degrees = LAYOUTS[layout]
    parallel = ParallelConfig(**degrees, sequence_parallel=degrees.get("tensor_model_parallel_size", 1) > 1)
    by_rank = run_ranks(gradients, ranks, parallel, KINDS)
    for number, kind in enumerate(KINDS):
        for name, expected in alone.items():
            found = joined([kinds[number] for kinds in by_rank])[name]
            error = (found - expected).abs().max() / expected.abs().max()
            assert error < 1e-12, f"{kind}: {name} differs by {error:.1e}"


def order_of_events(_rank: int, overlaps: bool) -> list[str]:
    model, _ = build(config_of(ParallelConfig(expert_model_parallel_size=2), shared_expert_overlap=overlaps))
    events: list[str] = []
    begin, end = Exchange.begin, Exchange.end

    def noted_begin(self: Exchange, x: Tensor, *sizes: Any) -> Tensor:
        events.append("send" if x.shape[-1] == 16 else "send weights")
        return begin(self, x, *sizes)

    def noted_end(self: Exchange, lane: Lane) -> Tensor:
        arrived = end(self, lane)
        events.append("arrive" if arrived.shape[-1] == 16 else "arrive weights")
        return arrived

    Exchange.begin, Exchange.end = noted_begin, noted_end  # type: ignore[method-assign]
    layer = model.decoder.layers["1"].mlp
    assert isinstance(layer, MoELayer)
    assert layer.shared_experts is not None
    layer.shared_experts.register_forward_hook(lambda *_: events.append("shared"))
    layer.shared_experts.register_full_backward_hook(lambda *_: events.append("shared backward"))
    x = torch.randn(S, 2, 16, dtype=torch.float64, requires_grad=True)
    layer(x)[0].sum().backward()
    return events


def between(events: list[str], what: str) -> tuple[int, int]:
    """Return how many exchanges of rows are under way at an event, and how many have ended."""
    before = list(_until(events, what))
    return before.count("send") - before.count("arrive"), before.count("arrive")


def _until(events: list[str], what: str) -> Iterator[str]:
    for event in events:
        if event == what:
            return
        yield event


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_shared_expert_works_while_tokens_travel(overlaps: bool) -> None:
    for events in run_ranks(order_of_events, 2, overlaps):
        if overlaps:
            assert between(events, "shared") == (1, 0), events
            # Two exchanges forward, the sums' way back in the backward, and the rows' is under way.
            assert between(events, "shared backward") == (1, 3), events
        else:
            assert between(events, "shared") == (0, 2), events
            assert between(events, "shared backward") == (0, 2), events


def rows_sent(_rank: int, kind: str, topk: int) -> int:
    model, mesh = build(config_of(ParallelConfig(expert_model_parallel_size=2), kind, router_topk=topk))
    sent: list[int] = []
    begin = Exchange.begin

    def noted(self: Exchange, x: Tensor, *sizes: Any) -> Tensor:
        if x.shape[-1] == 16:
            sent.append(len(x))
        return begin(self, x, *sizes)

    Exchange.begin = noted  # type: ignore[method-assign]
    with torch.no_grad():
        losses_of(model, mesh)
    return sum(sent)


def test_flex_sends_a_token_once_to_a_rank_and_alltoall_once_for_each_expert() -> None:
    tokens = S * BATCH
    by_rank = run_ranks(rows_sent, 2, "alltoall", 4)
    assert sum(by_rank) == 2 * 2 * tokens * 4, "two layers, there and back, four experts"
    by_rank = run_ranks(rows_sent, 2, "flex", 4)
    assert sum(by_rank) == 2 * 2 * tokens * 2, "two layers, there and back, two ranks"


def carried(_rank: int, parallel: ParallelConfig, kinds: tuple[str, ...]) -> list[tuple[Tensor, Tensor]]:
    """Return the first values of rows that arrive, and what their tokens carry."""
    found = []
    for kind in kinds:
        model, _ = build(config_of(parallel, kind))
        layer = next(module for module in model.modules() if isinstance(module, MoELayer))
        tokens = torch.arange(6) + 10 * _rank
        x_NH = tokens.double().unsqueeze(1).expand(6, 16).contiguous()
        chosen = torch.rand(6, 4, generator=torch.Generator().manual_seed(_rank)).topk(2).indices
        map_NE = torch.zeros(6, 4, dtype=torch.bool).scatter_(1, chosen, True)
        journey = layer._dispatch(x_NH, map_NE.double(), map_NE)
        rows = journey.arrive()
        found.append((rows.x[:, 0], journey.carry(tokens)))
    return found


@pytest.mark.parametrize("layout", ["ep2", "tp2_ep2_etp1", "tp2_etp2"])
def test_rows_have_the_numbers_of_their_tokens(layout: str) -> None:
    count, keys = LAYOUTS[layout]
    parallel = ParallelConfig(**{**keys, "sequence_parallel": "tensor_model_parallel_size" in keys})
    for rank in run_ranks(carried, count, parallel, KINDS):
        for x, numbers in rank:
            assert len(numbers)
            assert torch.equal(x, numbers.double())
