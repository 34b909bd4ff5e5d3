"""Every example of framework megatron_bridge builds for the ranks that its comment names."""

import math
import re
from pathlib import Path

import pytest

from primus.backends.megatron_bridge.build import MegatronBridgeBuilder
from primus.core.experiment import load_experiment

ROOT = Path(__file__).parents[2] / "examples/megatron_bridge/configs"
CLUSTER = sorted(ROOT.glob("*/*.yaml"))
TINY = sorted(ROOT.glob("*.yaml"))


def name_of(file):
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", [*CLUSTER, *TINY], ids=name_of)
def test_example_says_how_to_run_it(file):
    verb = "pretrain" if "pretrain" in file.name else "posttrain"
    assert f"primus train {verb} --config examples/megatron_bridge/configs/{name_of(file)}" in file.read_text()


@pytest.mark.parametrize("file", CLUSTER, ids=name_of)
def test_example_builds_for_the_ranks_it_names(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = [re.search(rf"--{option} (\d+)", file.read_text()) for option in ("nnodes", "nproc-per-node")]
    ranks = math.prod(int(number.group(1)) for number in numbers if number)
    experiment = load_experiment(file, [], {})
    (module,) = experiment.modules.values()
    built = MegatronBridgeBuilder(experiment, module, ranks, experiment.run_folder).build()
    is_tuning = "pretrain" not in file.name
    assert (built.config.dataset.sft is not None) == is_tuning
    assert (built.config.peft is not None) == ("lora" in file.name)
    assert [notice for notice in built.notices if "no effect" in notice] == []


@pytest.mark.parametrize("file", TINY, ids=name_of)
def test_tiny_example_asks_for_what_its_script_makes(file, monkeypatch, tmp_path):
    text = file.read_text()
    assert "python examples/megatron_bridge/make_tiny.py --out output/tiny" in text
    assert "hf_path: output/tiny/model" in text
