"""Lines the user reads at start."""

from pathlib import Path
from typing import Any

import pytest

SAMPLES = {"train_iters": None, "train_samples": 48}


@pytest.mark.parametrize(
    ("overrides", "without", "line"),
    [
        (
            {"load": "old"},
            ["finetune"],
            "STARTING OVER FROM WEIGHTS: finetune true (primus/configs/modules/megatron/pre_",
        ),
        ({"load": "old"}, ["finetune"], "iteration, optimizer, schedule, data position and random states are NOT restored"),
        ({"load": "old"}, [], "the learning-rate schedule comes from this configuration"),
        ({**SAMPLES, "lr_decay_samples": 40, "lr_warmup_samples": 8}, [], "8 samples before the end of the run"),
        ({"lr_decay_iters": 4}, [], "16 samples before the end of the run: lr_decay_iters 4"),
        ({"group_query_attention": True}, [], "with num_query_groups null is multi-head attention"),
        ({"swiglu": False, "bias_gelu_fusion": True, "add_bias_linear": True}, [], "gelu runs in its tanh form"),
        (
            {"num_experts": 4, "moe_router_force_load_balancing": True},
            [],
            "FOR MEASURING ONLY: moe_router_force_load_balancing",
        ),
        ({"profile": True}, [], "writes no trace file: use_pytorch_profiler false"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_a_surprise_is_announced(build: Any, overrides: dict[str, Any], without: list[str], line: str) -> None:
    notices = build(overrides, without=without).notices
    assert any(line in notice for notice in notices), notices


def test_a_plain_run_reads_one_line_at_most(build: Any) -> None:
    plain = build({"deterministic_mode": False}, without=["transformer_impl", "use_cpu_initialization"])
    assert plain.notices == []


def test_a_transport_of_the_environment_is_announced_where_it_would_act(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND", "DEEP_EP")
    turbo = {"num_experts": 4, "expert_model_parallel_size": 2, "use_turbo_deepep": True, "enable_primus_turbo": True}
    line = "PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND=DEEP_EP (environment) has no effect: tokens travel to experts by torch's"
    assert any(line in notice for notice in build(turbo, world_size=2).notices)
    assert not any(line in notice for notice in build({"num_experts": 4}).notices)


def test_an_explicit_choice_is_no_surprise(build: Any) -> None:
    notices = build({"load": "old", "override_opt_param_scheduler": True}).notices
    assert not any("schedule" in notice for notice in notices)


def test_a_first_start_hears_nothing_of_resuming(build: Any, tmp_path: Path) -> None:
    continues = {"save": "ckpt", "save_interval": 2, "auto_continue_train": True}
    assert not any("on resume" in notice for notice in build(continues).notices)
    (tmp_path / "run/ckpt/iter_0000002").mkdir(parents=True)
    assert any("on resume" in notice for notice in build(continues).notices)
