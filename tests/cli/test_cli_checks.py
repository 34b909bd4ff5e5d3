"""What is looked at around a run before it starts: folders that it will write, data and checkpoints that it will read."""

import os
from pathlib import Path

import pytest

from primus.engine.checkpoint.folder import TRACKER

START = ("train", "pretrain", "--config", "tiny.yaml")


def checkpoints(base: Path, *iterations: int) -> Path:
    """Make complete checkpoints of format `torch`, as far as a look from outside can tell."""
    for iteration in iterations:
        rank = base / f"iter_{iteration:07d}" / "mp_rank_00"
        rank.mkdir(parents=True)
        (rank / "model_optim_rng.pt").write_bytes(b"")
    (base / TRACKER).write_text(str(iterations[-1]))
    return base


@pytest.mark.parametrize("dry", [(), ("--dry-run",)], ids=["start", "dry-run"])
@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("save=/proc/nope",), "save"),
        (("save=taken/deep",), "save"),
        (("save=taken",), "save"),
        (("tensorboard_dir=/proc/nope",), "tensorboard_dir"),
        (("disable_wandb=false", "wandb_save_dir=/proc/nope"), "wandb_save_dir"),
        (
            ("save=c", "save_interval=2", "non_persistent_ckpt_type=global", "non_persistent_global_ckpt_dir=taken/n"),
            "non_persistent_global_ckpt_dir",
        ),
        (
            ("save=c", "save_interval=2", "non_persistent_ckpt_type=local", "non_persistent_local_ckpt_dir=/proc/nope"),
            "non_persistent_local_ckpt_dir",
        ),
        (("workspace=/proc/nope",), "workspace"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_written_is_found_before_the_start(primus, became, folder, words, key, dry):
    taken = folder / "taken"
    taken.write_text("")
    words = [word.replace("taken", str(taken)) for word in words]
    outcome = primus(*START, *dry, *words)
    assert (outcome.code, became) == (2, [])
    assert outcome.err.splitlines()[-1].startswith(f"error: {key} ")
    assert "(cli) cannot be written: " in outcome.err
    assert sorted(path.name for path in folder.iterdir()) == ["taken", "tiny.yaml"]


def test_only_the_rank_that_reports_needs_the_folders_of_reports(primus, became, monkeypatch):
    joined = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    for name, value in joined.items():
        monkeypatch.setenv(name, value)
    assert primus(*START, "tensorboard_dir=/proc/nope").code == 0
    assert primus(*START, "save=/proc/nope").code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_of_another_user_is_found(primus, folder):
    (folder / "locked").mkdir(mode=0o500)
    assert primus(*START, "--dry-run", f"save={folder}/locked/run").code == 2


def test_a_writable_folder_is_left_as_it_is(primus, folder):
    (folder / "there").mkdir()
    outcome = primus(*START, "--dry-run", f"save={folder}/there/a/b", f"tensorboard_dir={folder}/there")
    assert outcome.code == 0
    assert list((folder / "there").iterdir()) == []


def test_a_dry_run_says_which_checkpoints_a_fresh_start_replaces(primus, folder):
    base = checkpoints(folder / "ckpt", 2, 4)
    fresh = primus(*START, "--dry-run", f"save={base}")
    assert f"note: {base} already holds checkpoints of iterations 2, 4" in fresh.err
    assert "auto_continue_train: true" in fresh.err
    assert "already holds" in primus(*START, "--dry-run", f"save={base}", f"load={base}", "finetune=true").err
    for words in (["auto_continue_train=true"], [f"load={base}"]):
        assert "already holds" not in primus(*START, "--dry-run", f"save={base}", *words).err


def test_a_missing_input_names_the_key_that_asked_for_it(primus, folder):
    data = ("mock_data=false", "data_path=[0.5, half, 0.5, gone]", "split='1,0,0'", "vocab_size=null")
    tokenizer = ("tokenizer_type=SentencePieceTokenizer", "tokenizer_model=model")
    outcome = primus(*START, "--dry-run", *data, *tokenizer, "load=nowhere")
    lines = outcome.err.splitlines()
    for path, key in (("half", "data_path"), ("gone", "data_path"), ("model", "tokenizer_model"), ("nowhere", "load")):
        (line,) = [line for line in lines if str(folder / path) in line or f"tokenizer_model {path} " in line]
        assert line.endswith(f" ({key}, cli)")
