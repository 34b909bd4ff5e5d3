"""Switches of Turbo's kernels act under the master switch alone."""

from typing import Any

import pytest

from primus.engine.config.model import FusionConfig

SWITCHES = {
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
