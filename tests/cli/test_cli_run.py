"""Runs through the command itself: the road from YAML to metrics, alone, spawned and joined, and how a run fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import Program

from primus.engine import worker

pytestmark = pytest.mark.slow  # each test starts processes that import torch

PRIMUS = ("-m", "primus.cli.main", "train", "pretrain", "--config", "tiny.yaml", "bert_binary_head=false")
METRICS = Path("out/amd/ann/tiny/metrics.jsonl")


def run(*words, through=(), env=None):
    """Run the command in a process of its own."""
    command = [sys.executable, *through, *PRIMUS, *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def losses():
    return [json.loads(line)["lm_loss"] for line in METRICS.read_text().splitlines()]


def test_two_spawned_ranks_train_like_one_whose_run_repeats_from_its_folder(folder):
    alone = run()
    assert alone.returncode == 0, alone.stderr
    expected = losses()
    assert len(expected) == 6
    METRICS.unlink()
    repeated = Program(worker.main, "out/amd/ann/tiny/config.yaml", stderr=folder / "said")
    assert repeated.end()[0] == 0
    assert losses() == expected
    METRICS.unlink()
    spawned = run("--nproc-per-node", "2")
    assert spawned.returncode == 0, spawned.stderr
    assert losses() == pytest.approx(expected, rel=1e-6)
    METRICS.unlink()
    joined = run(through=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"))
    assert joined.returncode == 0, joined.stderr
    assert losses() == pytest.approx(expected, rel=1e-6)
    assert joined.stderr.count("note: bert_binary_head false (cli) has no effect") == 1
    log = METRICS.with_name("logs") / "rank-0.log"
    assert log.read_text().count("note: bert_binary_head false (cli) has no effect") == 3, "one a start"


def test_a_failing_run_is_exit_code_3_alone_and_spawned(start):
    words = ("lr=1e30", "min_lr=1e30", "clip_grad=0", "optimizer=sgd", "lr_decay_style=constant")
    code, alone = start(*words).end()
    assert code == 3, alone
    code, spawned = start(*words, "--nproc-per-node", "2").end()
    assert code == 3, spawned
    assert "failed first:\n" in spawned
    assert all("found NaN" in each for each in (alone, spawned))
    assert "Traceback" not in spawned
