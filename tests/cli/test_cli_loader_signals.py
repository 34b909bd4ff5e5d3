"""A signal to the whole process group, loader workers included, still ends in a checkpoint of the finished step."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts three processes that import torch

METRICS = Path("out/amd/ann/tiny/metrics.jsonl")


def start(*words: str) -> subprocess.Popen[str]:
    keys = ("num_workers=2", "exit_signal_handler=true", "save=checkpoints", "train_iters=60", "exit_interval=12", *words)
    command = [sys.executable, "-m", "primus.cli.main", "train", "pretrain", "--config", "tiny.yaml", "bert_binary_head=false"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *keys], env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return output


def rows() -> list[dict[str, float]]:
    return [json.loads(line) for line in METRICS.read_text().splitlines()] if METRICS.exists() else []


def test_sigterm_to_the_group_saves_and_the_resumed_run_is_the_straight_one(folder: Path) -> None:
    finish(start("save=straight"))
    expected = [(row["iteration"], row["lm_loss"], row["grad_norm"]) for row in rows()]
    assert len(expected) == 12
    METRICS.unlink()
    process = start()
    while len(rows()) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert "exiting program after receiving SIGTERM." in finish(process)
    assert 3 <= len(rows()) < 12
    finish(start("load=out/amd/ann/tiny/checkpoints"))
    assert [(row["iteration"], row["lm_loss"], row["grad_norm"]) for row in rows()] == expected
