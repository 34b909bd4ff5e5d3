"""Keys of the exchange of tokens: what chooses a dispatcher, and when two microbatches may take turns."""

from typing import Any

import pytest

EP2: dict[str, Any] = {"num_experts": 4, "expert_model_parallel_size": 2, "moe_token_dispatcher_type": "alltoall"}
TURNS: dict[str, Any] = {**EP2, "overlap_moe_expert_parallel_comm": True}


def test_turbo_deepep_chooses_flex_and_says_so(build: Any, problems_of: Any) -> None:
    unsaid = {key: value for key, value in EP2.items() if key != "moe_token_dispatcher_type"}
    keys = {**unsaid, "use_turbo_deepep": True, "enable_primus_turbo": True}
    built = build(keys, world_size=2)
    assert built.config.model.moe.token_dispatcher == "flex"
    assert any("gives way to flex" in notice for notice in built.notices)
    assert build({**keys, "enable_primus_turbo": False}, world_size=2).config.model.moe.token_dispatcher == "allgather"
    (problem,) = problems_of({**EP2, **keys}, world_size=2)
    assert "use_turbo_deepep true (exp.yaml:" in problem
    assert "moe_token_dispatcher_type alltoall (exp.yaml:" in problem


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"moe_token_dispatcher_type": "allgather"}, "use alltoall or flex"),
        ({"pipeline_model_parallel_size": 2}, "not implemented yet with pipeline_model_parallel_size 2"),
        ({"moe_layer_recompute": True}, "does not go with moe_layer_recompute"),
        (
            {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
            "does not go with recompute_granularity",
        ),
        (
            {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"},
            "does not go with sharded weights",
        ),
        ({"use_torch_fsdp2": True}, "sharded weights (use_torch_fsdp2 true"),
    ],
    ids=str,
)
def test_turns_are_refused(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    world_size = 2 * keys.get("pipeline_model_parallel_size", 1)
    problems = problems_of({**TURNS, **keys}, world_size=world_size)
    assert any(message in problem for problem in problems), problems


def test_torchs_sharding_does_not_know_experts_on_other_ranks(problems_of: Any) -> None:
    (problem,) = problems_of({**EP2, "use_torch_fsdp2": True}, world_size=2)
    assert "use_torch_fsdp2 true (exp.yaml:" in problem
    assert "expert_model_parallel_size 2" in problem
