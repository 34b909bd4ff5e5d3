"""Learning-rate and weight-decay curves against Megatron-Core's, and the rules of loading a schedule."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primus.engine.config import OptimizerConfig, SchedulerConfig
from primus.engine.optim.schedule import OptParamScheduler, learning_rate, weight_decay
from primus.errors import ConfigError, InputError

ORACLE = json.loads((Path(__file__).parents[2] / "data" / "optim" / "schedules.json").read_text())


def configs_of(keys: dict[str, Any]) -> tuple[SchedulerConfig, OptimizerConfig]:
    """Turn flat keys into the two configurations, everything in samples."""
    batch = keys["global_batch_size"]
    total = keys["train_samples"] if "train_samples" in keys else keys["train_iters"] * batch
    decay = keys["lr_decay_iters"] * batch if "lr_decay_iters" in keys else total
    warmup = keys.get("lr_warmup_samples", keys.get("lr_warmup_iters", 0) * batch)
    if "lr_warmup_fraction" in keys:
        warmup = keys["lr_warmup_fraction"] * decay
    scheduler = SchedulerConfig(
        lr_decay_style=keys["lr_decay_style"],
        lr_decay_steps=decay,
        lr_warmup_steps=warmup,
        lr_warmup_init=keys.get("lr_warmup_init", 0.0),
        wsd_decay_style=keys.get("lr_wsd_decay_style", "exponential"),
        wsd_decay_steps=keys["lr_wsd_decay_iters"] * batch if "lr_wsd_decay_iters" in keys else None,
        start_weight_decay=keys.get("start_weight_decay", 0.01),
        end_weight_decay=keys.get("end_weight_decay", 0.01),
        weight_decay_incr_style=keys.get("weight_decay_incr_style", "constant"),
        weight_decay_incr_steps=total,
    )
    optimizer = OptimizerConfig(
        lr=keys["lr"],
        min_lr=keys["min_lr"],
        decoupled_lr=keys.get("decoupled_lr"),
        decoupled_min_lr=keys.get("decoupled_min_lr"),
    )
    return scheduler, optimizer


def small(**changes: Any) -> SchedulerConfig:
    return replace(SchedulerConfig(lr_decay_steps=10, lr_warmup_steps=2, weight_decay_incr_steps=10), **changes)


@pytest.mark.parametrize("case", ORACLE["cases"])
def test_schedule_equals_megatron_core_at_every_iteration(case: str) -> None:
    keys, groups = ORACLE["cases"][case]["flat_keys"], ORACLE["cases"][case]["groups"]
    schedule = OptParamScheduler(*configs_of(keys))
    names = {"default": "default", "no_weight_decay": "default", "embedding_and_output": "embedding"}
    for expected in ORACLE["cases"][case]["lr_wd_used_in_iteration"]:
        for group, (lr, wd) in zip(groups, expected, strict=True):
            assert schedule.lr(names[group]) == pytest.approx(lr, rel=1e-12, abs=0)
            assert (0.0 if group == "no_weight_decay" else schedule.wd) == pytest.approx(wd, rel=1e-12, abs=0)
        schedule.step(keys["global_batch_size"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lr_decay_style": "constant"}, [0, 0.5, *[1] * 11]),
        ({"lr_decay_style": "linear"}, [0, 0.5, 1, 0.8875, 0.775, 0.6625, 0.55, 0.4375, 0.325, 0.2125, 0.1, 0.1, 0.1]),
        (
            {"lr_decay_style": "inverse-square-root"},
            [0, 0.5, 1, 0.816497, 0.707107, 0.632456, 0.57735, 0.534522, 0.5, 0.471405, 0.447214, 0.1, 0.1],
        ),
        (
            {"lr_decay_style": "WSD", "wsd_decay_steps": 4, "wsd_decay_style": "minus_sqrt"},
            [0, 0.5, 1, 1, 1, 1, 1, 0.55, 0.363604, 0.220577, 0.1, 0.1, 0.1],
        ),
        (
            {"lr_decay_style": "WSD", "wsd_decay_steps": 4},
            [0, 0.5, 1, 1, 1, 1, 1, 0.713614, 0.472792, 0.270286, 0.1, 0.1, 0.1],
        ),
        ({"lr_decay_style": "linear", "lr_warmup_steps": 0}, [1, 0.91, 0.82]),
        ({"lr_decay_style": "cosine", "lr_warmup_init": 0.05}, [0.05, 0.525, 1]),
    ],
)
def test_learning_rate_takes_its_published_values(changes: dict[str, Any], expected: list[float]) -> None:
    config = small(**changes)
    assert [learning_rate(config, n, 1.0, 0.1) for n in range(len(expected))] == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("linear", [0, 0.01, 0.02]),
        ("cosine", [0, 0.002447, 0.009549, 0.020611, 0.034549, 0.05, 0.065451, 0.079389, 0.090451, 0.097553, 0.1, 0.1]),
    ],
)
def test_weight_decay_takes_its_published_values(style: Any, expected: list[float]) -> None:
    config = small(end_weight_decay=0.1, weight_decay_incr_style=style)
    assert [weight_decay(config, n) for n in range(len(expected))] == pytest.approx(expected, abs=5e-7)


def test_output_rate_is_multiplied_by_head_lr_mult() -> None:
    schedule = OptParamScheduler(small(), OptimizerConfig(lr=1.0, min_lr=0.1, head_lr_mult=0.25))
    for _ in range(4):
        schedule.step(3)
        assert schedule.lr("output") == 0.25 * schedule.lr("default")
        assert schedule.lr("embedding") == schedule.lr("default")


def test_first_step_uses_warmup_init() -> None:
    assert OptParamScheduler(small(lr_warmup_init=1e-4), OptimizerConfig(lr=1e-3)).lr() == 1e-4
    assert OptParamScheduler(small(), OptimizerConfig(lr=1e-3)).lr() == 0.0


def stored_schedule(**changes: Any) -> dict[str, Any]:
    schedule = OptParamScheduler(small(lr_decay_style="constant"), replace(OptimizerConfig(lr=1e-3), **changes))
    schedule.step(6)
    return schedule.state_dict()


def test_state_has_megatrons_names() -> None:
    state = stored_schedule()
    assert state["num_steps"] == 6
    names = "max_lr min_lr lr_warmup_steps lr_decay_style lr_decay_steps start_wd end_wd wd_incr_style wd_incr_steps"
    assert set(names.split()) <= set(state)


def test_override_keeps_the_configured_schedule_and_the_stored_clock() -> None:
    schedule = OptParamScheduler(
        small(lr_decay_style="constant", override_opt_param_scheduler=True), OptimizerConfig(lr=1e-4, decoupled_lr=2e-4)
    )
    schedule.load_state_dict(stored_schedule())
    assert (schedule.num_steps, schedule.lr(), schedule.lr("embedding")) == (6, 1e-4, 2e-4)


def test_use_checkpoint_takes_the_stored_schedule_entirely() -> None:
    schedule = OptParamScheduler(small(use_checkpoint_opt_param_scheduler=True), OptimizerConfig(lr=1e-4))
    schedule.load_state_dict(stored_schedule(decoupled_lr=5e-3))
    assert (schedule.num_steps, schedule.lr(), schedule.lr("embedding")) == (6, 1e-3, 5e-3)
    assert schedule.config.lr_decay_style == "constant"


def test_without_a_choice_every_difference_is_refused_with_both_values() -> None:
    schedule = OptParamScheduler(small(lr_decay_style="cosine"), OptimizerConfig(lr=1e-4))
    with pytest.raises(ConfigError) as failure:
        schedule.load_state_dict(stored_schedule())
    text = str(failure.value)
    for part in ("lr: ", "0.001", "0.0001", "'constant'", "'cosine'", "override_opt_param_scheduler", "use_checkpoint"):
        assert part in text
    assert schedule.num_steps == 0


def test_without_a_choice_an_equal_schedule_loads() -> None:
    schedule = OptParamScheduler(small(lr_decay_style="constant"), OptimizerConfig(lr=1e-3))
    schedule.load_state_dict(stored_schedule())
    assert schedule.num_steps == 6


def test_names_of_older_checkpoints_are_read() -> None:
    schedule = OptParamScheduler(small(use_checkpoint_opt_param_scheduler=True), OptimizerConfig(lr=1e-4))
    schedule.load_state_dict({"start_lr": 2e-3, "warmup_steps": 4, "end_iter": 20, "decay_style": "linear", "num_iters": 12})
    assert schedule.lr() == pytest.approx(2e-3 * 0.5)


def test_a_checkpoint_without_a_clock_is_refused() -> None:
    with pytest.raises(InputError, match="num_steps"):
        OptParamScheduler(small(), OptimizerConfig(lr=1.0)).load_state_dict({"max_lr": 1.0})


@pytest.mark.parametrize(
    ("scheduler", "optimizer", "message"),
    [
        ({}, {"lr": 1e-3, "min_lr": 2e-3}, "min_lr 0.002 is above lr 0.001"),
        ({}, {"lr": 1e-3, "min_lr": -1.0}, "cannot be negative"),
        ({}, {"lr": 1e-3, "min_lr": 1e-4, "decoupled_lr": 1e-5}, "decoupled_min_lr"),
        ({"lr_warmup_init": 2e-3}, {"lr": 1e-3}, "lr_warmup_init"),
        ({"lr_decay_steps": 0}, {"lr": 1e-3}, "at least one"),
        ({"lr_warmup_steps": 10}, {"lr": 1e-3}, "not shorter"),
        ({"lr_decay_style": "WSD"}, {"lr": 1e-3}, "lr_wsd_decay"),
        ({"start_weight_decay": 0.2, "end_weight_decay": 0.1}, {"lr": 1e-3}, "cannot be negative or fall"),
        ({"override_opt_param_scheduler": True, "use_checkpoint_opt_param_scheduler": True}, {"lr": 1e-3}, "both true"),
    ],
)
def test_a_schedule_without_a_curve_is_refused(scheduler: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptParamScheduler(small(**scheduler), OptimizerConfig(**optimizer))
