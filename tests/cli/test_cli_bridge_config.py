"""`primus config` on experiments of framework megatron_bridge."""

import json
from pathlib import Path

import pytest

from primus.backends.megatron_bridge.keys import KEYS

BRIDGE = """\
modules:
  post_trainer:
    framework: megatron_bridge
    config: sft_trainer.yaml
    model: vanilla_gpt.yaml
    overrides:
      flavor: vanilla_gpt_finetune_config
      finetune_lr: 1e-3
      peft: lora
      peft_dim: 3
      optimizer: {adam_eps: 1}
"""


@pytest.fixture
def bridge():
    Path("bridge.yaml").write_text(BRIDGE)
    return "bridge.yaml"


def test_show_has_words_and_fields_with_their_sources(primus, bridge):
    outcome = primus("config", "show", bridge, "--json", "train_iters=7", "dataset.seed=3")
    assert (outcome.code, outcome.err) == (0, "")
    module = json.loads(outcome.out)["modules"]["post_trainer"]
    params = module["params"]
    assert module["framework"] == "megatron_bridge"
    assert params["finetune_lr"] == {"value": 1e-3, "source": "bridge.yaml:8"}
    assert params["optimizer.lr"] == {"value": 1e-3, "source": "bridge.yaml:8 as finetune_lr"}
    assert params["optimizer.adam_eps"] == {"value": 1.0, "source": "bridge.yaml:11 as optimizer.adam_eps"}
    assert params["peft.dim"] == {"value": 3, "source": "bridge.yaml:10 as peft_dim"}
    assert params["train.train_iters"] == {"value": 7, "source": "cli"}
    assert params["dataset.seed"]["value"] == 3
    assert params["optimizer.adam_beta1"]["source"] == "recipe gpt.vanilla_gpt"
    assert params["use_turbo_rms_norm"]["source"].startswith("primus/configs/modules/megatron_bridge/sft_trainer.yaml:")


def test_show_still_shows_what_is_wrong_and_leaves_with_2(primus, bridge):
    outcome = primus("config", "show", bridge, "finetune_lr=abc", "peft_dimm=4")
    assert outcome.code == 2
    assert "finetune_lr abc (cli) must be a number or null." in outcome.err
    assert "peft_dimm 4 (cli) is not a key of framework megatron_bridge. Did you mean peft_dim" in outcome.err
    assert "abc  # cli" in outcome.out


def test_explain_finds_keys_of_both_languages(primus):
    out = primus("config", "explain", "peft_dim").out
    assert "changes  peft.dim" in out
    assert "primus/configs/modules/megatron_bridge/sft_trainer.yaml:" in primus("config", "explain", "stage").out
    assert "peak" in primus("config", "explain", "lr", "--framework", "megatron_bridge").out.lower()
    both = primus("config", "explain", "peft_dimm")
    assert both.code == 2
    assert "megatron or megatron_bridge. Did you mean peft_dim" in both.err


def test_coverage_counts_the_documented_keys(primus):
    counted = json.loads(primus("config", "coverage", "--json", "--framework", "megatron_bridge").out)
    assert counted["live"] + counted["pending"] + counted["inert"] == len(counted["keys"]) == len(KEYS)
    assert counted["keys"]["peft_alpha"] == {"status": "live", "reason": ""}


def test_the_key_page_in_the_repository_is_the_generated_one(primus):
    page = Path(__file__).parents[2] / "docs" / "bridge-keys.md"
    out = primus("config", "docs", "--framework", "megatron_bridge").out
    assert page.read_text() == out, "run: primus config docs --framework megatron_bridge --out docs/bridge-keys.md"
    assert all(f"| `{name}` |" in out for name in KEYS)


@pytest.mark.parametrize("preset", ["sft_trainer.yaml", "pretrain_trainer.yaml"])
def test_module_presets_have_the_documented_defaults(primus, preset):
    Path("b.yaml").write_text(BRIDGE.replace("sft_trainer.yaml", preset))
    params = json.loads(primus("config", "show", "b.yaml", "--json").out)["modules"]["post_trainer"]["params"]
    documented = {
        "trainable": True,
        "stage": preset.partition("_")[0],
        "sink_level": None,
        "file_sink_level": "DEBUG",
        "stderr_sink_level": "INFO",
        "enable_primus_turbo": True,
        "use_turbo_parallel_linear": False,
        "use_turbo_grouped_gemm": False,
        "turbo_deepep_num_cu": 32,
        "turbo_sync_free_moe_stage": 0,
        "use_turbo_rms_norm": False,
    }
    assert {name: params[name]["value"] for name in documented} == documented


def test_a_switch_that_is_gone_is_refused_with_its_successor(primus):
    Path("gone.yaml").write_text(BRIDGE + "      use_turbo_grouped_mlp: true\n")
    outcome = primus("config", "validate", "gone.yaml")
    assert outcome.code == 2
    assert "use_turbo_grouped_mlp has been removed; please use use_turbo_grouped_gemm instead" in outcome.err
