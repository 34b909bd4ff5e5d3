"""A rank that dies in the middle of a step takes the others along, and what the user reads is its own end.

Two stages of two tensor-parallel ranks, forked, each a worker as a launcher starts it. No launcher ends those that are left:
they must find out themselves.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runs import build_container

from primus.engine import elastic, worker
from primus.engine.cause import Cause, read_cause
from primus.engine.config import serialize
from primus.engine.model.gpt import GPTModel

RANKS = 4
KEYS = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "train_iters": 100_000, "eval_iters": 0}
PATIENCE_S = 60


def fail() -> None:
    raise ValueError("a fault of this rank alone")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_with_fault(folder: Path, faulty: int, fault: Callable[[], None]) -> dict[int, int]:
    """Run a job of which one rank meets a fault in its second step; return all ranks' ends as subprocess gives them."""
    config = build_container(folder, "run", RANKS, KEYS)
    file = folder / "config.yaml"
    file.write_text(serialize.dump(config))
    pids = {_start(rank, folder, file, fault if rank == faulty else None): rank for rank in range(RANKS)}
    ends: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(ends) < RANKS and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid:
                ends[pids.pop(pid)] = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.02)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    rows = (folder / "g" / "u" / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 1, "the fault was not in the second step"
    assert not pids, f"ranks {sorted(pids.values())} still ran after {PATIENCE_S} s; the others ended with {ends}"
    return ends


def _start(rank: int, folder: Path, file: Path, fault: Callable[[], None] | None) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
        os.environ["TORCHELASTIC_ERROR_FILE"] = str(folder / f"cause-{rank}.json")
        store = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=timedelta(minutes=5))
        if fault is not None:
            _meet_in_second_step(fault)
        os._exit(worker.main([str(file)]))
    finally:
        os._exit(99)


def _meet_in_second_step(fault: Callable[[], None]) -> None:
    """Fail in the middle of a step, on a backend whose groups, as NCCL's may, wait at their end for what is under way."""
    forward, calls = GPTModel.forward, [0]
    dist.destroy_process_group = lambda: time.sleep(10 * PATIENCE_S)  # type: ignore[assignment]

    def counting(self: GPTModel, *arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 6:  # of 4 microbatches a step
            fault()
        return forward(self, *arguments, **options)

    GPTModel.forward = counting  # type: ignore[method-assign]


def shown(folder: Path, ends: dict[int, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what the launcher says of these ends."""
    monkeypatch.setattr(logging.getLogger("primus"), "propagate", True)
    failures: dict[int, Any] = {
        rank: SimpleNamespace(error_file=str(folder / f"cause-{rank}.json"), exitcode=end, signal_name=lambda: "SIGKILL")
        for rank, end in ends.items()
    }
    caplog.clear()
    assert elastic._report(failures, where="") == 3
    return [record.getMessage() for record in caplog.records]


def causes(folder: Path) -> dict[int, Cause]:
    found = {rank: read_cause(folder / f"cause-{rank}.json") for rank in range(RANKS)}
    return {rank: cause for rank, cause in found.items() if cause is not None}


@pytest.mark.parametrize("faulty", [0, 3], ids=["first-stage", "last-stage"])
def test_an_error_on_one_rank_ends_all_and_is_the_one_that_is_shown(
    faulty: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = run_with_fault(tmp_path, faulty, fail)
    assert ends == dict.fromkeys(range(RANKS), 3)
    (line,) = shown(tmp_path, ends, caplog, monkeypatch)
    assert line.startswith(f"rank {faulty} failed first:\nthe run failed: ValueError: a fault of this rank alone (")
    assert line.endswith(f"Its log: {tmp_path / 'g' / 'u' / 'run' / 'logs' / f'rank-{faulty}.log'}")
    found = causes(tmp_path)
    assert sorted(found) == list(range(RANKS))
    assert [rank for rank, cause in found.items() if "a fault of this rank alone" in cause.message] == [faulty]


def test_a_killed_rank_ends_all_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = run_with_fault(tmp_path, 2, be_killed)
    assert ends == {0: 3, 1: 3, 2: -signal.SIGKILL, 3: 3}
    (line,) = shown(tmp_path, ends, caplog, monkeypatch)
    assert line.startswith("rank 2 failed first: it was killed by SIGKILL. The system kills processes this way")
    assert sorted(causes(tmp_path)) == [0, 1, 3]
