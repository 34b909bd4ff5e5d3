"""Switches of Turbo's kernels act under the master switch alone."""

from typing import Any

import pytest

from primus.engine.config.model import FusionConfig

SWITCHES = {
    "use_turbo_attention": "attention",
    "use_turbo_rms_norm": "rms_norm",
    "use_turbo_fused_act_with_probs": "weighted_activation",
    "use_turbo_grouped_gemm": "grouped_gemm",
}


@pytest.mark.parametrize(("key", "field"), SWITCHES.items())
def test_a_switch_asks_for_its_kernel_under_the_master_switch(build: Any, key: str, field: str) -> None:
    moe = {"num_experts": 4, "moe_grouped_gemm": True}
    assert build({**moe, key: True}).config.model.fusion == FusionConfig()
    assert build({**moe, key: True, "enable_primus_turbo": True}).config.model.fusion == FusionConfig(**{field: True})


def test_two_kinds_of_grouped_products_exclude_each_other(problems_of: Any) -> None:
    (problem,) = problems_of({"num_experts": 4, "use_turbo_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True})
    assert "use_turbo_grouped_gemm true (exp.yaml:" in problem
    assert "moe_use_legacy_grouped_gemm true (exp.yaml:" in problem
    assert problem.endswith("set moe_use_legacy_grouped_gemm: false.")


def test_a_removed_name_says_its_successor(problems_of: Any) -> None:
    (problem,) = problems_of({"use_turbo_grouped_mlp": True})
    assert "use_turbo_grouped_mlp has been removed; please use use_turbo_grouped_gemm instead" in problem


def test_a_stage_turns_other_switches_on_and_says_so(build: Any) -> None:
    keys = {"num_experts": 4, "expert_model_parallel_size": 2, "enable_primus_turbo": True, "use_turbo_grouped_gemm": True}
    moe = {**keys, "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall"}
    found = []
    for stage in (1, 2, 3):
        built = build({**moe, "turbo_sync_free_moe_stage": stage}, world_size=2)
        model = built.config.model
        said = [line for line in built.notices if "gives way to true: turbo_sync_free_moe_stage" in line]
        found.append((model.moe.token_dispatcher, model.fusion.weighted_activation, len(said)))
        assert any("stage 1 (exp.yaml:" in line and "changes nothing" in line for line in built.notices) == (stage == 1)
    assert found == [("alltoall", False, 0), ("flex", False, 1), ("flex", True, 2)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"turbo_sync_free_moe_stage": 1}, "needs enable_primus_turbo: true"),
        ({"turbo_sync_free_moe_stage": 2, "enable_primus_turbo": True}, "needs use_turbo_grouped_gemm: true"),
        ({"turbo_sync_free_moe_stage": 4}, "turbo_sync_free_moe_stage"),
        ({"turbo_sync_free_moe_stage": -1}, "turbo_sync_free_moe_stage"),
    ],
)
def test_stages_are_refused_without_what_they_need(problems_of: Any, keys: dict[str, Any], message: str) -> None:
    ranks = {"num_experts": 4, "expert_model_parallel_size": 2, "moe_token_dispatcher_type": "alltoall"}
    (problem,) = problems_of({**ranks, **keys}, world_size=2)
    assert message in problem
    assert "exp.yaml:" in problem
