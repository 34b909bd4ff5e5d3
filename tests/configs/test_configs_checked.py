"""Presets pass the key checker silently: no value of ours is of a wrong type, and none warns."""

from pathlib import Path

import pytest

import primus
from primus.backends.megatron.keys import KEYS
from primus.core.experiment import Value
from primus.core.keys import check_params

PARTS = {"primus_megatron_model.yaml", "model_families.yaml"}
FILES = (Path(primus.__file__).parent / "configs/models/megatron").glob("*.yaml")
MODELS = sorted({file.name for file in FILES} - PARTS)


def checked(values):
    """What the checker says when every value comes from a preset."""
    params = {key: Value(value, "preset") for key, value in values.items()}
    return check_params(KEYS, params, params)


@pytest.mark.parametrize("trainer", ["trainer_base", "pre_trainer"])
@pytest.mark.parametrize("model", MODELS)
def test_presets_are_accepted_as_they_are(trainer, model, resolve_preset):
    values = resolve_preset(f"modules/megatron/{trainer}.yaml") | resolve_preset(f"models/megatron/{model}")
    typed, problems, warnings = checked(values)
    assert problems == []
    assert warnings == []
    assert set(typed) == {key for key, row in KEYS.items() if not row.reason.endswith("instead")}
