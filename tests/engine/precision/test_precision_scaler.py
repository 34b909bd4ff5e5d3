"""Loss scaling against Megatron-Core's trace, and which scaler a run gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from primus.engine.config import MixedPrecisionConfig
from primus.engine.precision import ConstantScaler, DynamicScaler, build_loss_scaler
from primus.errors import InputError

CASES = json.loads((Path(__file__).parents[2] / "data" / "optim" / "loss_scaler.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case["flat_keys"].values())))
def test_dynamic_scale_follows_megatron_core(case: dict[str, Any]) -> None:
    scaler = build_loss_scaler(MixedPrecisionConfig(params_dtype="float16", **case["flat_keys"]))
    assert isinstance(scaler, DynamicScaler)
    scales, trackers = [], []
    for found_inf in case["found_inf"]:
        scaler.update(found_inf=bool(found_inf))
        scales.append(scaler.scale)
        trackers.append([scaler.growth_tracker, scaler.hysteresis_tracker])
    assert scales == case["scale_after_update"]
    assert trackers == case["growth_and_hysteresis_tracker"]


def test_overflow_budget_is_not_refilled_by_good_steps() -> None:
    scaler = DynamicScaler(initial=16.0, minimum=1.0, window=3, hysteresis=2)
    scales = []
    for flag in (1, 1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0):
        scaler.update(found_inf=bool(flag))
        scales.append(scaler.scale)
    assert scales == [16, 8, 4, 4, 4, 8, 8, 8, 4, 2, 2, 2, 4]


def test_dynamic_state_continues_exactly() -> None:
    first = DynamicScaler(initial=2.0**32, minimum=1.0, window=4, hysteresis=2)
    for flag in (True, False, False, True):
        first.update(found_inf=flag)
    second = DynamicScaler(initial=2.0**32, minimum=1.0, window=4, hysteresis=2)
    second.load_state_dict(first.state_dict())
    for flag in (False, True, False, False, False, False):
        first.update(found_inf=flag)
        second.update(found_inf=flag)
    assert first.state_dict() == second.state_dict()


def test_a_state_without_scale_is_refused() -> None:
    with pytest.raises(InputError, match="scale"):
        DynamicScaler(initial=2.0, minimum=1.0, window=1, hysteresis=1).load_state_dict({"growth": 1})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"params_dtype": "float16"}, DynamicScaler),
        ({"params_dtype": "float16", "loss_scale": 0.0}, DynamicScaler),
        ({"params_dtype": "float16", "loss_scale": 8.0}, ConstantScaler),
        ({"params_dtype": "bfloat16", "loss_scale": 8.0}, ConstantScaler),
        ({"params_dtype": "float32", "loss_scale": 8.0}, ConstantScaler),
        ({"params_dtype": "bfloat16"}, type(None)),
        ({"params_dtype": "float32"}, type(None)),
    ],
)
def test_scaler_is_chosen_by_static_scale_then_dtype(config: dict[str, Any], expected: type) -> None:
    assert type(build_loss_scaler(MixedPrecisionConfig(**config))) is expected


def test_constant_scale_ignores_overflows_and_stored_scales() -> None:
    scaler = ConstantScaler(64.0)
    scaler.update(found_inf=True)
    scaler.load_state_dict({"scale": 2.0})
    assert scaler.scale == scaler.state_dict()["scale"] == 64.0
