"""The presets hold every documented key at its documented default, in the documented file."""

import json
from pathlib import Path

import pytest

REFERENCE = json.loads((Path(__file__).parents[1] / "data/megatron/keys.json").read_text(encoding="utf-8"))
KEPT = [row for row in REFERENCE if not row["removed"]]
OVERRIDDEN = [row for row in REFERENCE if "pre_trainer_default" in row]
FILES = {
    "module_base.yaml": "modules/module_base.yaml",
    "trainer_base.yaml": "modules/megatron/trainer_base.yaml",
    "primus_megatron_module.yaml": "modules/megatron/primus_megatron_module.yaml",
    "primus_turbo.yaml": "modules/megatron/primus_turbo.yaml",
    "zero_bubble.yaml": "modules/megatron/zero_bubble.yaml",
    "primus_pipeline.yaml": "modules/megatron/primus_pipeline.yaml",
    "language_model.yaml": "models/megatron/language_model.yaml",
    "primus_megatron_model.yaml": "models/megatron/primus_megatron_model.yaml",
}


def same(a, b):
    """Equal, and of one YAML kind: 1 is not true, 1.0 is not 1."""
    return a == b and type(a) is type(b)


@pytest.mark.parametrize("row", KEPT, ids=lambda row: row["key"])
def test_key_stands_in_its_file_at_its_default(row, read_preset):
    holders = {name: preset[row["key"]] for name in row["files"] if row["key"] in (preset := read_preset(FILES[name]))}
    assert holders, f"{row['key']} is in none of {row['files']}"
    last = [name for name in FILES if name in holders][-1]
    assert same(holders[last], row["default"])


def test_module_base_alone_does_not_train(read_preset):
    assert read_preset("modules/module_base.yaml")["trainable"] is False


@pytest.mark.parametrize("preset", ["trainer_base", "pre_trainer"])
def test_trainer_presets_resolve_to_the_documented_values(preset, resolve_preset):
    values = resolve_preset(f"modules/megatron/{preset}.yaml") | resolve_preset("models/megatron/language_model.yaml")
    field = "pre_trainer_default" if preset == "pre_trainer" else "default"
    wrong = {row["key"]: values[row["key"]] for row in KEPT if not same(values[row["key"]], row.get(field, row["default"]))}
    assert wrong == {}


@pytest.mark.parametrize("row", OVERRIDDEN, ids=lambda row: row["key"])
def test_pre_trainer_itself_writes_its_change(row, read_preset):
    assert same(read_preset("modules/megatron/pre_trainer.yaml")[row["key"]], row["pre_trainer_default"])


def test_pre_trainer_writes_nothing_but_its_changes(read_preset):
    assert set(read_preset("modules/megatron/pre_trainer.yaml")) == {"extends"} | {row["key"] for row in OVERRIDDEN}


def test_removed_keys_are_in_no_preset(resolve_preset):
    values = resolve_preset("modules/megatron/pre_trainer.yaml") | resolve_preset("models/megatron/language_model.yaml")
    assert [row["key"] for row in REFERENCE if row["removed"] and row["key"] in values] == []


def test_module_and_model_presets_share_no_key(resolve_preset):
    module, model = resolve_preset("modules/megatron/pre_trainer.yaml"), resolve_preset("models/megatron/language_model.yaml")
    assert set(module) & set(model) == set()
