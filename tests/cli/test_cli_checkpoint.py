"""`primus checkpoint import-hf | export-hf`."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import TINY, Primus

RECORDED = Path(__file__).parents[1] / "data" / "hf"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move weights in this process: another one would import torch first."""
    from primus.engine import exchange

    def run(command: list[str], *, check: bool) -> "subprocess.CompletedProcess[bytes]":
        assert command[:3] == [sys.executable, "-m", "primus.engine.exchange"]
        return subprocess.CompletedProcess(command, exchange.main(command[3:]))

    monkeypatch.setattr("primus.cli.checkpoint.subprocess.run", run)
    monkeypatch.setattr("primus.log.configure", lambda **_: None)


@pytest.mark.slow  # a process imports torch
def test_a_folder_comes_in_and_a_run_takes_its_preset(primus: Primus, folder: Path) -> None:
    done = primus("checkpoint", "import-hf", "--hf-path", str(RECORDED / "llama"), "--out", "ckpt")
    assert (done.code, done.err) == (0, "")
    assert f"pretrained_checkpoint: {folder / 'ckpt'}" in done.out
    assert sorted(each.name for each in (folder / "ckpt").iterdir()) == [
        "huggingface",
        "latest_checkpointed_iteration.txt",
        "model.yaml",
        "release",
    ]
    experiment = yaml.safe_load(TINY)
    experiment["modules"]["pre_trainer"]["model"] = "ckpt/model.yaml"
    (folder / "exp.yaml").write_text(yaml.safe_dump(experiment))
    assert primus("config", "validate", "exp.yaml").code == 0


@pytest.mark.usefixtures("here")
def test_a_checkpoint_goes_out(primus: Primus, folder: Path) -> None:
    words = ("--hf-path", str(RECORDED / "llama"))
    assert primus("checkpoint", "import-hf", *words, "--out", "ckpt").code == 0
    assert primus("checkpoint", "export-hf", "ckpt", "--out", "hf", *words).code == 0
    for name in ("model.safetensors", "config.json"):
        assert _content(folder / "hf" / name) == _content(RECORDED / "llama" / name)
    refused = primus("checkpoint", "export-hf", "ckpt", "--out", "hf")
    assert refused.code == 2
    assert f"error: {folder / 'hf'} is there already and not empty" in refused.err


def _content(file: Path) -> object:
    if file.suffix == ".json":
        return json.loads(file.read_text())
    from safetensors.numpy import load_file

    return {name: (tensor.dtype, tensor.tobytes()) for name, tensor in load_file(file).items()}


@pytest.mark.usefixtures("here")
def test_what_is_wrong_with_a_folder_is_told_and_nothing_is_left(
    primus: Primus, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = primus("checkpoint", "import-hf", "--hf-path", "nowhere", "--out", "ckpt")
    assert missing.code == 2
    why = "nowhere/config.json cannot be read: No such file or directory; give the folder of a Hugging Face model"
    assert missing.err == f"error: {why}\n"
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text((RECORDED / "llama" / "config.json").read_text())
    empty = primus("checkpoint", "import-hf", "--hf-path", "hf", "--out", "ckpt")
    assert empty.code == 2
    assert "error: hf holds neither model.safetensors nor model.safetensors.index.json" in empty.err
    (folder / "hf" / "model.safetensors").write_text("short")
    assert primus("checkpoint", "import-hf", "--hf-path", "hf", "--out", "ckpt").code == 2
    assert "error: hf/model.safetensors is damaged or no safetensors file" in caplog.text
    assert "Traceback" not in caplog.text
    assert sorted(each.name for each in folder.iterdir()) == ["hf", "tiny.yaml"]


def test_a_verb_that_is_told_to_end_leaves_nothing(primus: Primus, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primus.cli.checkpoint.subprocess.run", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    ended = primus("checkpoint", "import-hf", "--hf-path", str(RECORDED / "llama"), "--out", "ckpt")
    assert ended.code == 128 + signal.SIGTERM
    assert [each.name for each in folder.iterdir()] == ["tiny.yaml"]


def test_a_verb_says_that_its_process_was_killed(primus: Primus, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = subprocess.CompletedProcess[bytes]([], -signal.SIGKILL)
    monkeypatch.setattr("primus.cli.checkpoint.subprocess.run", lambda *_, **__: killed)
    ended = primus("checkpoint", "import-hf", "--hf-path", str(RECORDED / "llama"), "--out", "ckpt")
    assert ended.code == 3
    assert "error: the process that moves weights was ended by SIGKILL; a machine that runs out of memory" in ended.err
    assert [each.name for each in folder.iterdir()] == ["tiny.yaml"]


def test_weights_of_another_model_than_the_experiments_are_refused(primus: Primus) -> None:
    words = ("checkpoint", "import-hf", "--hf-path", str(RECORDED / "qwen2"), "--out", "ckpt", "--config", "tiny.yaml")
    refused = primus(*words)
    assert refused.code == 2
    assert "tiny.yaml: model.hidden_size is 256, and 48 in" in refused.err
    assert "tiny.yaml: model.attention.add_qkv_bias is False, and True in" in refused.err


@pytest.mark.parametrize(
    ("family", "entry", "asked"),
    [("llama", "num_hidden_layers", "num_hidden_layers"), ("qwen3_moe", "num_experts", "the number of experts")],
)
def test_more_than_a_folder_can_hold_is_refused_at_once(
    family: str, entry: str, asked: str, primus: Primus, folder: Path
) -> None:
    shutil.copytree(RECORDED / family, "hf")
    content = json.loads(Path("hf/config.json").read_text())
    Path("hf/config.json").write_text(json.dumps({**content, entry: 10**7}))
    refused = primus("checkpoint", "import-hf", "--hf-path", "hf", "--out", "ckpt")
    assert refused.code == 2
    assert f"error: hf/config.json: {asked} is 10000000, and all the weights in hf are " in refused.err
    assert not (folder / "ckpt").exists()


@pytest.mark.usefixtures("here")
def test_adapters_come_in_and_go_out(primus: Primus, folder: Path) -> None:
    """Their model is the one that the folder names, or another name for it."""
    source = folder / "peft"
    _write_adapters(source, base=str(RECORDED / "llama"))
    done = primus("checkpoint", "import-peft", "--peft-path", "peft", "--out", "ckpt")
    assert (done.code, done.err) == (0, "")
    assert 'peft: "canonical_lora"' in done.out
    assert 'peft_target_modules: ["linear_q"]' in done.out
    assert f'load: "{folder / "ckpt"}"' in done.out
    assert primus("checkpoint", "export-peft", "ckpt", "--out", "again").code == 0
    assert _content(folder / "again" / "adapter_model.safetensors") == _content(source / "adapter_model.safetensors")
    assert _content(folder / "again" / "adapter_config.json") == _content(source / "adapter_config.json")
    assert primus("checkpoint", "export-hf", "ckpt", "--out", "merged").code == 0
    base = _content(RECORDED / "llama" / "model.safetensors")
    merged = _content(folder / "merged" / "model.safetensors")
    assert isinstance(base, dict)
    assert isinstance(merged, dict)
    changed = {name for name in base if base[name] != merged[name]}
    assert {name.rpartition("layers.")[2].partition(".")[2] for name in changed} == {"self_attn.q_proj.weight"}


def test_adapters_without_a_known_model_are_refused(primus: Primus, folder: Path) -> None:
    _write_adapters(folder / "peft", base=None)
    refused = primus("checkpoint", "import-peft", "--peft-path", "peft", "--out", "ckpt")
    assert refused.code == 2
    assert "names no base_model_name_or_path; give the model with --hf-path" in refused.err
    refused = primus("checkpoint", "import-peft", "--peft-path", "nowhere", "--out", "ckpt")
    assert refused.code == 2
    assert "nowhere/adapter_config.json cannot be read" in refused.err


def _write_adapters(folder: Path, *, base: str | None) -> None:
    """Write adapters of all queries of the recorded Llama."""
    import numpy as np
    from safetensors.numpy import save_file

    shape = json.loads((RECORDED / "llama" / "config.json").read_text())
    h, heads = shape["hidden_size"], shape["num_attention_heads"]
    rows = heads * shape.get("head_dim", h // heads)
    folder.mkdir()
    random, tensors = np.random.default_rng(1), {}
    for number in range(shape["num_hidden_layers"]):
        stem = f"base_model.model.model.layers.{number}.self_attn.q_proj.lora_"
        tensors[f"{stem}A.weight"] = random.normal(size=(4, h)).astype(np.float32)
        tensors[f"{stem}B.weight"] = random.normal(size=(rows, 4)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "target_modules": ["q_proj"],
        "use_dora": False,
        "use_rslora": False,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (folder / "adapter_config.json").write_text(json.dumps(content))
