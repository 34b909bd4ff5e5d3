"""What a rehearsal says forwards keep: tensor by tensor as the formula of a layer has it, and as often as the schedule says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runs import build_container

from primus.core.plan import plan_of
from primus.engine.parallel.mesh import single_mesh
from primus.engine.rehearsal.live import Live
from primus.engine.rehearsal.phases import Phases
from primus.engine.rehearsal.record import Memory, from_json, to_json
from primus.engine.rehearsal.rehearse import counted_step, rehearse
from primus.engine.rehearsal.stand_in import StandIn, silent_world
from primus.engine.train.assemble import assemble

S, H, F, Q, KV, HEADS = 64, 32, 96, 32, 16, 4
BF16 = {
    "micro_batch_size": 1,
    "bf16": True,
    "seq_length": S,
    "max_position_embeddings": S,
    "ffn_hidden_size": F,
    "group_query_attention": True,
    "num_query_groups": 2,
    "cross_entropy_loss_fusion": True,
}


Rehearsed = Callable[[int, int, dict[str, Any]], Memory]


@pytest.fixture
def rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rehearsed:
    """Return a function that rehearses a rank of a world under the overrides given."""

    def run(world_size: int, rank: int, overrides: dict[str, Any]) -> Memory:
        config = build_container(tmp_path, "x", world_size, {**BF16, **overrides})
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        record = rehearse(replace(config, model=replace(config.model, vocab_size=96)))
        assert from_json(to_json(record)) == record
        return record.memory

    return run


def layer_bytes(tokens: int) -> int:
    """Return what one layer keeps of a microbatch under mixed precision, with the library's norm in fp32."""
    norms = 2 * (4 * tokens * H + 4 * tokens + 4 * H + 2 * tokens * H)  # input, scale and gain in fp32, output in bf16
    # The projection stays whole for its values; queries and keys are rotated copies.
    attention = 2 * tokens * (Q + 2 * KV) + 2 * tokens * (Q + KV) + 2 * tokens * Q + 4 * tokens * HEADS
    feed_forward = 2 * tokens * (2 * F) + 2 * tokens * F
    return norms + attention + feed_forward


SAME_KERNELS = {
    "bf16": False,
    "normalization": "LayerNorm",
    "swiglu": False,
    "position_embedding_type": "learned_absolute",
    "attention_backend": "unfused",
    "global_batch_size": 2,
}
"""A CPU computes these as the meta device does."""


@pytest.mark.parametrize(
    "overrides",
    [{}, {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1}, {"add_bias_linear": True}],
    ids=["whole", "recompute", "biases"],
)
def test_the_most_of_a_step_is_what_a_real_step_holds(rehearsed, tmp_path, overrides):
    expected = rehearsed(1, 0, {**SAME_KERNELS, **overrides})
    config = build_container(tmp_path, "x", 1, {**BF16, **SAME_KERNELS, **overrides})
    config = replace(config, model=replace(config.model, vocab_size=96))
    with Live("cpu") as live:
        parts = assemble(config, single_mesh(), None)
        held, phases = live.hold(), Phases(live)
        counted_step(parts, 2, phases)
    assert max(phases.peaks[name] for name in ("forward", "backward")) - held == expected.activations


def test_a_layer_keeps_what_its_formula_says(rehearsed):
    two, four = (rehearsed(1, 0, {"num_layers": n}).activations for n in (2, 4))
    assert four - two == pytest.approx(2 * layer_bytes(S), rel=0.01)


def test_a_rank_holds_as_many_microbatches_as_its_schedule_says(rehearsed):
    stages = {"num_layers": 4, "pipeline_model_parallel_size": 4}
    first, second, third = (rehearsed(4, rank, stages).activations for rank in (0, 1, 2))
    # A message arrives for each of them besides.
    assert second - third == pytest.approx(layer_bytes(S) + 2 * S * H, rel=0.05)
    assert first > second


def test_what_was_sent_is_not_held():
    with silent_world(0, 2), StandIn():
        work = dist.isend(torch.empty(3, device="meta"), 1)
        assert work is not None
        assert work.is_completed(), "peers answer at once"


EXPERTS = {
    "num_experts": 4,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": F,
    "moe_token_dispatcher_type": "alltoall",
    "expert_model_parallel_size": 2,
    "use_distributed_optimizer": True,
}


def test_a_rank_holds_its_experts(rehearsed, tmp_path):
    whole, halved = (rehearsed(4, 1, {**EXPERTS, "expert_model_parallel_size": n}) for n in (1, 2))
    experts = 2 * 4 * 3 * H * F
    assert whole.weights - halved.weights == 2 * experts // 2
    # Main weights and moments lie with the ranks that hold the same experts.
    assert halved.optimizer_state == whole.optimizer_state == pytest.approx(2 * whole.main_weights, rel=0.01)
    config = build_container(tmp_path, "x", 4, {**BF16, **EXPERTS})
    (place,) = plan_of(replace(config, model=replace(config.model, vocab_size=96)), 4).places
    assert halved.weights == pytest.approx(place.memory.weights, rel=0.01), "but for padding"


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall", "flex"])
def test_experts_need_not_divide_the_tokens(rehearsed, dispatcher):
    uneven = {**EXPERTS, "num_experts": 12, "moe_router_topk": 3, "seq_length": 20, "moe_token_dispatcher_type": dispatcher}
    assert rehearsed(4, 1, uneven).activations > 0


def test_a_layer_keeps_a_row_for_each_choice_of_a_token(rehearsed):
    def layer(topk: int) -> int:
        two, four = (rehearsed(4, 1, {**EXPERTS, "num_layers": n, "moe_router_topk": topk}).activations for n in (2, 4))
        return (four - two) // 2

    # Its input and both halves before the activation; whose row it is comes on top.
    assert layer(3) - layer(2) == pytest.approx(2 * S * (H + 2 * F), rel=0.1)


def test_recomputed_layers_keep_their_input_alone(rehearsed):
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    two, four = (rehearsed(1, 0, {**whole, "num_layers": n}).activations for n in (2, 4))
    assert four - two == pytest.approx(2 * 2 * S * H, rel=0.05)


def test_what_is_sent_to_the_host_is_not_held(rehearsed):
    folded = {
        "num_layers": 8,
        "global_batch_size": 16,
        "pipeline_model_parallel_size": 2,
        "patch_primus_pipeline": True,
        "pp_algorithm": "zbv-formatted",
        "num_virtual_stages_per_pipeline_rank": 2,
    }
    kept, sent = (
        rehearsed(2, 0, {**folded, "offload": offload, "offload_ops": "attn"}).activations for offload in (False, True)
    )
    assert sent < kept


def test_sharded_gradients_and_weights_are_held_in_part_and_come_whole_unit_by_unit(rehearsed):
    def memory(strategy: str) -> Memory:
        keys = {"num_layers": 8, "use_megatron_fsdp": True, "use_distributed_optimizer": True, "global_batch_size": 8}
        return rehearsed(4, 0, {**keys, "data_parallel_sharding_strategy": strategy})

    state, gradients, weights = (memory(name) for name in ("optim", "optim_grads", "optim_grads_params"))
    assert gradients.gradients == pytest.approx(state.gradients / 4, rel=0.05)
    assert weights.weights == pytest.approx(state.weights / 4, rel=0.05)
    # A unit is a layer here, not the model.
    assert state.activations < weights.activations < state.activations + state.weights
    assert weights.peak < gradients.peak < state.peak
