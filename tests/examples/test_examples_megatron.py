"""Every example experiment names presets that exist and sets nothing but keys that act."""

import math
import re
from pathlib import Path

import pytest
import yaml

import primus
from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.backends.megatron.keys import KEYS
from primus.core.experiment import load_experiment

ROOT = Path(__file__).parents[2] / "examples/megatron/configs"
PRESETS = Path(primus.__file__).parent / "configs"
EXAMPLES = sorted(ROOT.glob("*/*.yaml"))


def module_of(file):
    (module,) = yaml.safe_load(file.read_text(encoding="utf-8"))["modules"].values()
    return module


def name_of(file):
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", EXAMPLES, ids=name_of)
def test_example_names_presets_that_exist(file):
    module = module_of(file)
    assert (PRESETS / "modules" / module["framework"] / module["config"]).is_file()
    assert (PRESETS / "models" / module["framework"] / module["model"]).is_file()


@pytest.mark.parametrize("file", EXAMPLES, ids=name_of)
def test_example_sets_live_keys_only(file):
    assert {key: KEYS[key].status for key in module_of(file)["overrides"] if KEYS[key].status != "live"} == {}


@pytest.mark.parametrize("file", EXAMPLES, ids=name_of)
def test_example_says_how_to_run_it(file):
    command = f"primus train pretrain --config examples/megatron/configs/{name_of(file)}"
    assert command in file.read_text(encoding="utf-8")


def test_each_cluster_has_the_same_models():
    assert {file.name for file in (ROOT / "MI300X").iterdir()} == {file.name for file in (ROOT / "H200").iterdir()}


def ranks_of(file):
    """Processes that the command in the file's comment starts."""
    text = file.read_text(encoding="utf-8")
    numbers = [re.search(rf"--{option} (\d+)", text) for option in ("nnodes", "nproc-per-node")]
    return math.prod(int(number.group(1)) for number in numbers if number)


@pytest.mark.parametrize("file", EXAMPLES, ids=name_of)
def test_example_builds_for_the_ranks_it_names(file):
    experiment = load_experiment(file, [], {})
    (module,) = experiment.modules.values()
    built = MegatronArgBuilder(experiment, module, ranks_of(file), experiment.run_folder).build()
    assert built.config.run.folder == str(experiment.run_folder)
    assert [line for line in built.notices if "no effect" in line] == []
