"""Model presets: known keys only, the zoo's values, the published parameter counts, and which of them still wait for a key."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import primus
from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.keys import KEYS
from primus.core.experiment import load_experiment
from primus.core.keys import check_values
from primus.core.plan import plan_of
from primus.engine.model.size import parameter_count
from primus.errors import ConfigError

MODELS = sorted(file.stem for file in (Path(primus.__file__).parent / "configs/models/megatron").glob("*.yaml"))
ROOTS = ("language_model", "primus_megatron_model", "model_families")
FAMILIES = [name for name in MODELS if name not in ROOTS and not name.endswith("_base")]
ZOO = json.loads((Path(__file__).parents[1] / "data/megatron/zoo.json").read_text(encoding="utf-8"))
OWN = {"llama_mini": 8192}

PAGE = Path(__file__).parents[2] / "docs/models.md"
ROWS = [
    [cell.strip(" `") for cell in row.strip("|").split("|")] for row in re.findall(r"^\| `.*$", PAGE.read_text("utf-8"), re.M)
]
WAITING = {row[0]: row[-1].removeprefix("waits for `") for row in ROWS if row[-1] != "runs"}
"""Presets that a key of theirs keeps from running until it is built: the page is the one list of them."""

OF_THE_TRAINER = {"seq_length", "make_vocab_size_divisible_by", "enable_experimental"}
"""Zoo values of keys that the trainer's preset sets, which wins over a model's."""
OF_OTHER_KERNELS = {"fla_cache_dir", "fla_mla_attn", "fused_ce_chunks", "fused_ce_mode", "use_fla_data", "use_fla_short_conv"}
OF_OTHER_KERNELS |= {"use_fla_fused_gated_norm", "use_fla_fused_rmsnorm", "use_fla_fused_swiglu", "num_nextn_predict_layers"}
"""Null throughout the zoo, and no keys here."""
ADDED = {
    **{
        name: {"mamba_expand": 1, "qk_layernorm": True}
        for name in ("zebra_llama_1B", "zebra_llama_3B", "zebra_llama_8B", "zebra_llama_300M_mamba_hybrid")
    },
    **{name: {"experimental_attention_variant": "gated_delta_net"} for name in ZOO if "_gdn" in name},
    "zebra_llama_300M_gdn_hybrid": {"experimental_attention_variant": "gated_delta_net", "qk_layernorm": True},
    **{name: {"experimental_attention_variant": "kimi_delta_attention"} for name in ZOO if "_kda" in name},
}
"""What the zoo's trainer writes into a family's code instead of its preset."""

UNCOUNTED = {name for name in ZOO if name.startswith(("deepseek_v4", "kimi_k3", "lfm2", "mamba", "qwen3_5", "zebra"))}
"""Their layers are of other kinds."""
COUNTED = [name for name, facts in ZOO.items() if "parameters" in facts and name not in UNCOUNTED]


def attention(values):
    """Weights of attention, norms of queries and keys included: heads with groups, or with a latent vector."""
    hidden, heads = values["hidden_size"], values["num_attention_heads"]
    if values["multi_latent_attention"]:
        rank, latent, head = values["q_lora_rank"], values["kv_lora_rank"], values["v_head_dim"]
        rotated, query = values["qk_pos_emb_head_dim"], values["qk_head_dim"] + values["qk_pos_emb_head_dim"]
        queries = hidden * heads * query if rank is None else hidden * rank + rank + rank * heads * query
        keys = hidden * (latent + rotated) + latent + latent * heads * (values["qk_head_dim"] + head)
        return queries + keys + heads * head * hidden
    head = values["kv_channels"] or hidden // heads
    groups = values["num_query_groups"] if values["group_query_attention"] else heads
    return hidden * (heads + 2 * groups) * head + heads * head * hidden + values["qk_layernorm"] * 2 * head


def mixtures(values):
    """The number of layers with experts."""
    freq = values["moe_layer_freq"]
    pattern = eval(freq) if isinstance(freq, str) else [int(n % freq == 0) for n in range(values["num_layers"])]
    assert len(pattern) == values["num_layers"]
    return sum(pattern)


def count(values, rows):
    """Parameters of a decoder without biases by the formula, all and those that a token meets."""
    hidden = values["hidden_size"]
    tables = 2 if values["untie_embeddings_and_output_weights"] else 1
    ffn = values["ffn_hidden_size"] or int(hidden * 4 * 2 / 3) // 64 * 64
    sparse = mixtures(values) if values["num_experts"] else 0
    common = rows * hidden * tables + hidden + values["num_layers"] * (attention(values) + 2 * hidden)
    common += (values["num_layers"] - sparse) * 3 * hidden * ffn
    if not sparse:
        return common, common
    expert = 3 * hidden * (values["moe_ffn_hidden_size"] or ffn)
    common += sparse * hidden * (values["num_experts"] + 3 * (values["moe_shared_expert_intermediate_size"] or 0))
    return tuple(common + sparse * number * expert for number in (values["num_experts"], values["moe_router_topk"]))


@pytest.mark.parametrize("name", MODELS)
def test_preset_names_known_keys_only(name, read_preset):
    assert set(read_preset(f"models/megatron/{name}.yaml")) - {"extends"} <= set(KEYS)


@pytest.mark.parametrize("name", ZOO)
def test_preset_resolves_to_the_zoo(name, resolve_preset):
    base = resolve_preset("models/megatron/language_model.yaml")
    values = resolve_preset(f"models/megatron/{name}.yaml")
    facts = {**ZOO[name]["values"], **ADDED.get(name, {})}
    assert facts.pop("layernorm_epsilon", 1e-5) == 1e-5, "what norm_epsilon is by itself"
    assert all(facts.pop(key, None) is None for key in OF_OTHER_KERNELS)
    facts = {key: value for key, value in facts.items() if key not in OF_THE_TRAINER}
    for key, same in (("moe_layer_freq", "1"), ("mtp_num_layers", 0)):
        if facts.get(key) == same:  # another way to write the default
            del facts[key]
    assert values == base | facts


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
    assert count(values, ZOO[name]["vocab_rows"]) == (ZOO[name]["parameters"], ZOO[name]["active"])


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama_tiny", 5_048_576), ("llama_mini", 7_342_336), ("qwen3_moe_tiny", 4_205_056), ("deepseek_tiny", 5_407_616)],
)
def test_small_preset_has_the_size_its_comment_claims(name, parameters, resolve_preset):
    assert count(resolve_preset(f"models/megatron/{name}.yaml"), OWN.get(name, 4096))[0] == parameters


EXPERIMENT = """\
work_group: t
user_name: t
exp_name: t
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: {name}.yaml
    overrides: {{mock_data: true{more}}}
"""


@pytest.fixture
def experiment_of(tmp_path, resolve_preset):
    """Return a function that gives a preset's experiment and values; a context is chosen where the preset leaves it open."""

    def experiment(name):
        values = resolve_preset(f"models/megatron/{name}.yaml")
        more = "" if values["max_position_embeddings"] else ", max_position_embeddings: 4096"
        file = tmp_path / "experiment.yaml"
        file.write_text(EXPERIMENT.format(name=name, more=more), encoding="utf-8")
        return load_experiment(file, [], {}), values

    return experiment


@pytest.mark.parametrize("name", FAMILIES)
def test_model_preset_needs_nothing_but_data(name, experiment_of, tmp_path):
    experiment, values = experiment_of(name)
    (module,) = experiment.modules.values()
    assert check_values(KEYS, module.params).problems == []
    if name in WAITING:
        return
    ranks = values["expert_model_parallel_size"]
    config = MegatronArgBuilder(experiment, module, ranks, tmp_path).build().config
    model = config.model
    assert (model.num_layers, model.hidden_size) == (values["num_layers"], values["hidden_size"])
    assert model.attention.num_query_groups == (values["num_query_groups"] or values["num_attention_heads"])
    assert model.normalization == values["normalization"]
    is_latent = values["multi_latent_attention"]
    assert model.attention.mla.enabled == is_latent
    assert model.position.type == (values["rope_type"] or ("yarn" if is_latent else values["position_embedding_type"]))
    rows = ZOO[name]["vocab_rows"] if name in ZOO else OWN.get(name, 4096)
    model = replace(model, vocab_size=rows, make_vocab_size_divisible_by=1)
    size, plan = parameter_count(model), plan_of(replace(config, model=model), ranks)
    further = sum(layer.total for layer in size.predictions)
    assert further == (ZOO[name]["prediction"] if name in ZOO else 0)
    size = replace(size, predictions=())
    expected = (ZOO[name]["parameters"], ZOO[name]["active"]) if name in UNCOUNTED else count(values, rows)
    assert (size.total, size.active) == expected
    experts = sum(layer.experts for layer in parameter_count(model).layers)
    dense = sum(layer.dense_on_rank(model.parallel) for layer in parameter_count(model).predictions)
    their_experts = sum(layer.experts_on_rank(model.parallel) for layer in parameter_count(model).predictions)
    assert [place.parameters for place in plan.places] == [size.total - experts + experts // ranks + dense + their_experts]


@pytest.mark.parametrize("name", WAITING)
def test_a_preset_waits_for_a_key_that_is_not_built(name, experiment_of, tmp_path):
    """For the key as a whole, or for the value that the preset gives it."""
    key = WAITING[name]
    experiment, _ = experiment_of(name)
    (module,) = experiment.modules.values()
    with pytest.raises(ConfigError) as refused:
        MegatronArgBuilder(experiment, module, 8, tmp_path).build()
    words = "is not implemented yet" if KEYS[key].status == "pending" else "is not built yet"
    about = [problem for problem in refused.value.problems if problem.startswith(f"{key} ") and words in problem]
    assert about != [], f"docs/models.md: {name} runs, or waits for another key now"


def test_the_page_has_a_row_for_every_preset():
    assert sorted(row[0] for row in ROWS) == FAMILIES


def in_digits(size):
    """Return the number that `30.5 B` stands for."""
    digits, unit = size.split()
    return float(digits) * 1e3 ** (2 + "MBT".index(unit))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_page_tells_a_presets_size(row, resolve_preset):
    name, parameters, active, shape, _, experts, _ = row
    values = resolve_preset(f"models/megatron/{name}.yaml")
    facts = ZOO.get(name)
    sizes = (facts["parameters"], facts["active"]) if facts else count(values, OWN.get(name, 4096))
    assert in_digits(parameters) == pytest.approx(sizes[0], rel=5e-3)
    assert in_digits(active or parameters) == pytest.approx(sizes[1], rel=5e-3)
    assert shape == f"{values['num_layers']} x {values['hidden_size']}"
    assert experts == (f"{values['num_experts']} / {values['moe_router_topk']}" if values["num_experts"] else "")
