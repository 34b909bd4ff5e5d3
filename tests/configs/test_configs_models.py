"""Model presets: known keys only, the zoo's values, the published parameter counts."""

import json
from pathlib import Path

import pytest

import primus
from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.keys import KEYS
from primus.core.experiment import load_experiment

MODELS = sorted(file.stem for file in (Path(primus.__file__).parent / "configs/models/megatron").glob("*.yaml"))
ZOO = json.loads((Path(__file__).parents[1] / "data/megatron/dense_zoo.json").read_text(encoding="utf-8"))
COUNTED = [name for name, facts in ZOO.items() if "parameters" in facts]
OWN = {"llama_tiny": 4096, "llama_mini": 8192}


def count(values, rows):
    """Parameters of a dense decoder without biases, by the formula: embedding, head, attention, feed-forward, norms."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    head = values["kv_channels"] or hidden // heads
    groups = values["num_query_groups"] if values["group_query_attention"] else heads
    attention = hidden * (heads + 2 * groups) * head + heads * head * hidden
    qk_norms = 2 * head if values["qk_layernorm"] else 0
    layer = attention + qk_norms + 3 * hidden * values["ffn_hidden_size"] + 2 * hidden
    tables = 2 if values["untie_embeddings_and_output_weights"] else 1
    return rows * hidden * tables + values["num_layers"] * layer + hidden


@pytest.mark.parametrize("name", MODELS)
def test_preset_names_known_keys_only(name, read_preset):
    assert set(read_preset(f"models/megatron/{name}.yaml")) - {"extends"} <= set(KEYS)


@pytest.mark.parametrize("name", ZOO)
def test_preset_resolves_to_the_zoo(name, resolve_preset):
    base = resolve_preset("models/megatron/language_model.yaml")
    values = resolve_preset(f"models/megatron/{name}.yaml")
    assert {key: value for key, value in values.items() if value != base[key]} == ZOO[name]["values"]


@pytest.mark.parametrize("name", ZOO)
def test_preset_writes_no_value_it_inherits(name, read_preset, resolve_preset):
    own = read_preset(f"models/megatron/{name}.yaml")
    (base,) = own.pop("extends")
    inherited = resolve_preset(f"models/megatron/{base}")
    widths = {"hidden_size", "num_layers", "num_attention_heads"}
    assert [key for key, value in own.items() if inherited[key] == value and key not in widths] == []


@pytest.mark.parametrize("name", COUNTED)
def test_preset_has_the_zoos_parameter_count(name, resolve_preset):
    values = resolve_preset(f"models/megatron/{name}.yaml")
    assert count(values, ZOO[name]["vocab_rows"]) == ZOO[name]["parameters"]


@pytest.mark.parametrize(("name", "parameters"), [("llama_tiny", 5_048_576), ("llama_mini", 7_342_336)])
def test_small_preset_has_the_size_its_comment_claims(name, parameters, resolve_preset):
    assert count(resolve_preset(f"models/megatron/{name}.yaml"), OWN[name]) == parameters


EXPERIMENT = """\
work_group: t
user_name: t
exp_name: t
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: {name}.yaml
    overrides: {{mock_data: true}}
"""
ROOTS = ("language_model", "primus_megatron_model", "model_families")
FAMILIES = [name for name in MODELS if name not in ROOTS and not name.endswith("_base")]


@pytest.mark.parametrize("name", FAMILIES)
def test_model_preset_needs_nothing_but_data(name, tmp_path, resolve_preset):
    file = tmp_path / "experiment.yaml"
    file.write_text(EXPERIMENT.format(name=name), encoding="utf-8")
    experiment = load_experiment(file, [], {})
    (module,) = experiment.modules.values()
    model = MegatronArgBuilder(experiment, module, 1, tmp_path).build().config.model
    values = resolve_preset(f"models/megatron/{name}.yaml")
    assert (model.num_layers, model.hidden_size) == (values["num_layers"], values["hidden_size"])
    assert model.attention.num_query_groups == (values["num_query_groups"] or values["num_attention_heads"])
    assert model.normalization == "RMSNorm"
    assert model.position.type == "rope"
