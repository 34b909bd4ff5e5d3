"""A run starts straight from a Hugging Face folder, in any layout, as from the checkpoint that an import makes of it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hf_runs import RECORDED, hf_container, losses
from ranks import run_ranks
from runs import logged_rank

from primus.engine.checkpoint.hf.exchange import import_hf
from primus.engine.checkpoint.hf.fit import unfit
from primus.engine.checkpoint.hf.new_folder import new_folder
from primus.engine.checkpoint.hf.stored import tensor_names
from primus.engine.checkpoint.start import find_base, find_start, start_problems
from primus.engine.config import CheckpointConfig
from primus.errors import InputError


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("qwen2", {"tensor_model_parallel_size": 2, "make_vocab_size_divisible_by": 96}),
        ("llama", {"pipeline_model_parallel_size": 2}),
        ("qwen3_moe", {"expert_model_parallel_size": 2}),
    ],
)
def test_ranks_read_what_they_hold(name: str, layout: dict[str, Any], tmp_path: Path) -> None:
    with new_folder(tmp_path / "ckpt") as folder:
        import_hf(RECORDED / name, folder)
    imported = hf_container(tmp_path, RECORDED / name, 1, "imported")
    imported = replace(
        imported, checkpoint=replace(imported.checkpoint, hf_path=None, pretrained_checkpoint=str(tmp_path / "ckpt"))
    )
    expected = losses(imported, 1)
    assert losses(hf_container(tmp_path, RECORDED / name, 2, "straight", **layout), 2) == pytest.approx(expected, rel=1e-5)


def test_a_run_says_what_it_started_from(tmp_path: Path) -> None:
    """Nothing is said to be lost that no such folder holds; a second start goes on from what the run saved."""
    config = hf_container(tmp_path, RECORDED / "llama", 1, "told", save=str(tmp_path / "saved"), save_interval=2)
    (text,) = run_ranks(logged_rank, 1, config)
    assert f"loaded the weights of {RECORDED / 'llama'} (llama)" in text
    assert "NOT restored" not in text
    resumed = replace(config.checkpoint, auto_continue_train=True)
    start = find_start(resumed)
    assert start is not None
    assert (start.iteration, start.is_hugging_face) == (2, False)


def test_a_folder_of_another_model_is_refused_with_each_field(tmp_path: Path) -> None:
    config = hf_container(tmp_path, RECORDED / "llama", 1, "other")
    assert unfit(config) == []
    other = replace(config, model=replace(config.model, num_layers=7, norm_epsilon=0.5))
    *fields, advice = unfit(other)
    assert len(fields) == 2
    assert any("model.num_layers is 7 in this run, and " in line and "config.json" in line for line in fields)
    assert any("model.norm_epsilon is 0.5 in this run, and " in line for line in fields)
    assert "correct hf_path" in advice
    loads = replace(other, checkpoint=replace(other.checkpoint, auto_continue_train=True, save=str(tmp_path / "none")))
    assert len(unfit(loads)) == 3


def test_the_base_is_what_is_named_first(tmp_path: Path) -> None:
    hf = RECORDED / "llama"
    with new_folder(tmp_path / "ckpt") as folder:
        import_hf(hf, folder)
    both = CheckpointConfig(pretrained_checkpoint=str(tmp_path / "ckpt"), hf_path=str(hf))
    for config, found in (
        (both, tmp_path / "ckpt" / "release"),
        (CheckpointConfig(pretrained_checkpoint=str(tmp_path / "ckpt" / "release")), tmp_path / "ckpt" / "release"),
        (CheckpointConfig(pretrained_checkpoint=str(hf)), hf),
        (CheckpointConfig(hf_path=str(hf)), hf),
    ):
        base = find_base(config)
        assert base is not None
        assert (base.folder, base.weights_only, base.is_hugging_face) == (found, True, found == hf)
    assert find_base(CheckpointConfig()) is None
    # Adapters are resumed beside their base: neither takes the place of the other.
    assert find_start(both, adapters=True) is None
    with pytest.raises(InputError, match=r"load: .*nope does not exist"):
        find_start(replace(both, load=str(tmp_path / "nope")), adapters=True)


def test_a_folder_without_weights_is_told_before_anything_starts(tmp_path: Path) -> None:
    (problem,) = start_problems(CheckpointConfig(hf_path=str(tmp_path / "nope")))
    assert "hf_path:" in problem
    assert "does not exist" in problem
    (tmp_path / "hf").mkdir()
    shutil.copy(RECORDED / "llama" / "config.json", tmp_path / "hf")
    (problem,) = start_problems(CheckpointConfig(hf_path=str(tmp_path / "hf")), adapters=True)
    assert "holds neither model.safetensors nor" in problem


@pytest.mark.parametrize("second", ["whole", "cut"])
def test_a_tensor_may_stand_in_two_files_and_a_cut_one_is_told_once(tmp_path: Path, second: str) -> None:
    hf = shutil.copytree(RECORDED / "llama", tmp_path / "hf")
    data = (hf / "model.safetensors").read_bytes()
    (hf / "model.safetensors").rename(hf / "a.safetensors")
    (hf / "b.safetensors").write_bytes(data if second == "whole" else b"")
    places = dict.fromkeys(tensor_names(RECORDED / "llama"), "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    (hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    problems = unfit(hf_container(tmp_path, hf, 1, "two"))
    assert [str(hf / "b.safetensors") in each for each in problems] == ([] if second == "whole" else [True])


@pytest.mark.parametrize("damage", ["cut", "empty", "index", "layers"])
def test_damaged_weights_are_told_before_anything_starts(tmp_path: Path, damage: str) -> None:
    hf = shutil.copytree(RECORDED / "llama", tmp_path / "hf")
    config = hf_container(tmp_path, hf, 1, "damaged")
    file = hf / "model.safetensors"
    data = file.read_bytes()
    if damage in ("cut", "empty"):
        file.write_bytes(data[:-9] if damage == "cut" else b"")
    elif damage == "index":
        file.rename(hf / "a.safetensors")
        index = {"weight_map": {"model.embed_tokens.weight": "a.safetensors", "model.nowhere": "a.safetensors"}}
        (hf / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        file.write_bytes(data.replace(b"model.layers.1.", b"model.layers.7."))
    said = {
        "cut": f"{file} is damaged: it has {len(data) - 9:,d} bytes, and its header tells of {len(data):,d}; fetch it again",
        "empty": f"{file} is damaged or no safetensors file: ",
        "index": f"{hf}: the index says that a.safetensors holds model.nowhere, and it does not",
        "layers": f"{hf / 'config.json'} says 2 layers, and the files hold no tensor of layer 1: fetch the folder again",
    }
    (problem,) = unfit(config)
    assert problem.startswith(said[damage])
