"""The worker as a process: what it leaves in its log, how it answers Ctrl-C, and that a run folder has one run at a time."""

import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import Program
from runs import build_container

from primus.engine import worker
from primus.engine.cause import read_cause
from primus.engine.config import serialize
from primus.engine.train.sinks import Report

Start = Callable[..., Program]

ENDLESS = {"train_iters": 100_000, "save": "ckpt", "save_interval": 100_000, "eval_iters": 0}
FAILING = {"lr": 1e30, "min_lr": 1e30, "clip_grad": 0.0, "optimizer": "sgd", "lr_decay_style": "constant"}


def container_file(folder: Path, **overrides: Any) -> Path:
    config = build_container(folder, "run", 1, overrides)
    file = folder / "config.yaml"
    file.write_text(serialize.dump(config))
    return file


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a worker with these arguments; all are ended behind the test."""
    started: list[Program] = []
    monkeypatch.setattr(Report, "close", lambda _self, *, failed: None)  # pictures take longest

    def run(*arguments: str | Path, **env: str) -> Program:
        started.append(Program(worker.main, *arguments, stderr=tmp_path / f"stderr-{len(started)}", **env))
        return started[-1]

    yield run
    for program in started:
        program.kill()


def wait_for_training(folder: Path) -> None:
    deadline = time.monotonic() + 120
    metrics = folder / "g" / "u" / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert time.monotonic() < deadline, "no iteration was logged"
        time.sleep(0.05)


def broken_container(folder: Path) -> Path:
    """A container whose run ends with an error that nobody foresaw."""
    file = container_file(folder, train_iters=1)
    (folder / "g" / "u" / "run").mkdir(parents=True)
    (folder / "g" / "u" / "run" / "metrics.jsonl").mkdir()
    return file


def test_an_unforeseen_error_leaves_its_traceback_in_the_ranks_log_also_under_a_launcher(start: Start, tmp_path: Path) -> None:
    file = broken_container(tmp_path)
    log = tmp_path / "g" / "u" / "run" / "logs" / "rank-0.log"
    code, alone = start(file).end()
    assert code == 3
    assert "the run failed: IsADirectoryError" in alone
    assert log.read_text().count("Traceback (most recent call last)") == 1
    cause = tmp_path / "cause.json"
    code, launched = start(file, TORCHELASTIC_ERROR_FILE=str(cause)).end()
    assert code == 3
    assert "IsADirectoryError" not in launched
    assert log.read_text().count("Traceback (most recent call last)") == 2
    found = read_cause(cause)
    assert found is not None
    assert found.log == str(log)


def test_ctrl_c_ends_in_one_line_and_code_130(start: Start, tmp_path: Path) -> None:
    program = start(container_file(tmp_path, **ENDLESS))
    wait_for_training(tmp_path)
    program.send_signal(signal.SIGINT)
    code, said = program.end()
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in said
    assert said.splitlines()[-1] == "interrupted; exit_signal_handler: true lets a run save before it ends"
    assert not list(tmp_path.rglob("iter_*"))


class Torch(ModuleType):
    """Stands in for what imports torch: like torch, it loses an interrupt that falls into its import of numpy."""

    @property
    def pretrain(self) -> Callable[..., None]:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return lambda *_, **__: None


def test_ctrl_c_that_falls_into_an_import_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setitem(sys.modules, "primus.engine.train.pretrain", Torch("pretrain"))
    monkeypatch.setattr("primus.log.configure", lambda **_: None)
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with caplog.at_level(logging.ERROR, "primus"):
            assert worker.main([str(container_file(tmp_path))]) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)
    assert caplog.messages == ["interrupted; exit_signal_handler: true lets a run save before it ends"]


def test_ctrl_c_saves_where_signals_are_handled(start: Start, tmp_path: Path) -> None:
    program = start(container_file(tmp_path, **ENDLESS, exit_signal_handler=True))
    wait_for_training(tmp_path)
    program.send_signal(signal.SIGINT)
    code, said = program.end()
    assert code == 0, said
    assert "exiting program after receiving SIGINT." in said
    assert list(tmp_path.rglob("iter_*"))


def test_a_second_run_in_the_same_folder_is_refused_and_a_killed_one_bars_nobody(start: Start, tmp_path: Path) -> None:
    file = container_file(tmp_path, **ENDLESS, num_workers=1)
    first = start(file)
    wait_for_training(tmp_path)
    rows = (tmp_path / "g" / "u" / "run" / "metrics.jsonl").read_text()
    code, said = start(file).end()
    assert code == 2
    assert f"process {first.pid}" in said
    assert len(said.splitlines()) == 1
    assert (tmp_path / "g" / "u" / "run" / "metrics.jsonl").read_text().startswith(rows)
    first.kill()
    code, said = start(container_file(tmp_path, train_iters=1)).end()
    assert code == 0, said


def test_a_worker_without_a_container_file_says_how_it_is_called(start: Start) -> None:
    code, said = start().end()
    assert code == 2
    assert said == "usage: python -m primus.engine.worker CONFIG, the config.yaml of a run folder\n"


def test_a_run_folder_that_cannot_be_written_is_the_users_to_mend(start: Start, tmp_path: Path) -> None:
    file = container_file(tmp_path)
    (tmp_path / "g").write_text("in the way")
    code, said = start(file).end()
    assert code == 2
    assert said == f"the run folder {tmp_path}/g/u/run cannot be written: Not a directory\n"
