"""Keys of the loop act: stopping, collecting, watching, profiling, skipping."""

import gc
import json
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ranks import run_ranks
from runs import build_container, train, write_corpus

from primus.engine.checkpoint.start import find_start
from primus.engine.config import ConfigContainer, EvaluationConfig, TrainConfig
from primus.engine.optim.optimizer import Optimizer
from primus.engine.parallel.mesh import single_mesh
from primus.engine.train import pretrain as pretrain_module
from primus.engine.train import step as step_module
from primus.engine.train.callbacks.collection import GarbageCollection
from primus.engine.train.callbacks.replicas import ReplicaCheck
from primus.engine.train.callbacks.stop import Stopping
from primus.engine.train.pretrain import pretrain
from primus.errors import ConfigError, PrimusError

pytestmark = pytest.mark.slow  # whole runs


class _Loop:
    """What the callbacks here see of a loop."""

    def __init__(self, iteration: int) -> None:
        self.state = type("State", (), {"iteration": iteration})()
        self.stop_reason: str | None = None

    def stop(self, reason: str) -> None:
        self.stop_reason = reason


def config(**keys: Any) -> TrainConfig:
    return TrainConfig(micro_batch_size=1, global_batch_size=1, train_iters=9, evaluation=EvaluationConfig(), **keys)


def stopped(iteration: int, *, started: float, **keys: Any) -> str | None:
    loop = _Loop(iteration)
    Stopping(config(**keys), single_mesh(), process_start=started).after_step(loop, None)  # type: ignore[arg-type]
    return loop.stop_reason


def test_exit_interval_stops_at_its_multiples() -> None:
    assert stopped(3, started=0.0, exit_interval=2) is None
    assert stopped(4, started=0.0, exit_interval=2) == "exiting program at iteration 4"


def test_exit_duration_counts_minutes_since_the_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    assert stopped(1, started=1000.0 - 50, exit_duration_in_mins=1.0) is None
    assert stopped(1, started=1000.0 - 70, exit_duration_in_mins=1.0) == "exiting program after 1.2 minutes"


def test_sigterm_is_answered_after_the_iteration_only_if_it_is_handled() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        loop = _Loop(1)
        stopping = Stopping(config(exit_signal_handler=True), single_mesh(), process_start=0.0)
        os.kill(os.getpid(), signal.SIGTERM)
        stopping.after_step(loop, None)  # type: ignore[arg-type]
        assert loop.stop_reason == "exiting program after receiving SIGTERM."
    finally:
        signal.signal(signal.SIGTERM, before)


def test_manual_gc_collects_on_schedule_only(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda *_, **__: collected.append(1) or 0)
    callback = GarbageCollection(config(manual_gc=True, manual_gc_interval=2))
    try:
        callback.on_start(_Loop(0))  # type: ignore[arg-type]
        assert not gc.isenabled()
        for iteration in (1, 2, 3, 4):
            callback.after_step(_Loop(iteration), None)  # type: ignore[arg-type]
        assert len(collected) == 1 + 2
    finally:
        callback.close(failed=False)
    assert gc.isenabled()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_empty_unused_memory_level_says_how_often_memory_is_given_back(level: int, tmp_path: Path) -> None:
    def run(_rank: int, container: ConfigContainer) -> list[str]:
        seen: list[str] = []
        update = Optimizer.step
        step_module.return_cached = lambda device: seen.append("return")  # type: ignore[attr-defined]
        Optimizer.step = lambda self, **more: (seen.append("update"), update(self, **more))[1]  # type: ignore[method-assign]
        pretrain(container, process_start=0.0)
        return seen

    container = build_container(tmp_path, "run", 1, {"train_iters": 2, "empty_unused_memory_level": level})
    each = {0: ["update"], 1: ["return", "update"], 2: ["return", "update", "return"]}[level]
    assert run_ranks(run, 1, container) == [each * 2]


def test_skipped_iterations_draw_data_and_train_nothing(tmp_path: Path) -> None:
    straight = train(tmp_path, "straight")
    skipping = train(tmp_path, "skipping", {"iterations_to_skip": [0, 2]})
    assert [row["iteration"] for row in skipping] == [2, 4, 5, 6]
    assert [row["consumed_samples"] for row in skipping] == [16, 32, 40, 48]
    assert skipping[0]["learning_rate"] == straight[0]["learning_rate"]


def test_disable_last_saving_and_save_interval(tmp_path: Path) -> None:
    train(tmp_path, "run", {"save": "ckpt", "save_interval": 2, "disable_last_saving": True})
    folders = sorted(p.name for p in (tmp_path / "g" / "u" / "run" / "ckpt").glob("iter_*"))
    assert folders == ["iter_0000002", "iter_0000004"]


def test_no_save_never_writes_a_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, "run", {"train_iters": 2})
    assert not list((tmp_path / "g" / "u" / "run").rglob("iter_*"))


def test_skip_train_evaluates_and_leaves_the_weights(tmp_path: Path) -> None:
    trained = train(tmp_path, "trained", {"save": "ckpt", "save_interval": 6, "eval_iters": 2, "eval_interval": 6})
    source = str(tmp_path / "g" / "u" / "trained" / "ckpt")
    rows = train(tmp_path, "only", {"load": source, "skip_train": True, "eval_iters": 2, "eval_interval": 6})
    assert [set(row) >= {"validation_loss", "test_loss"} for row in rows] == [True]
    assert [row["iteration"] for row in trained if "validation_loss" in row] == [6]


def test_evaluations_alone_save_nothing_repeat_and_need_no_rate(tmp_path: Path) -> None:
    keys = {"save": str(tmp_path / "ckpt"), "save_interval": 6, "eval_iters": 2, "eval_interval": 6}
    train(tmp_path, "trained", keys)
    folder = tmp_path / "ckpt" / "iter_0000006"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    alone = {**keys, "load": keys["save"], "skip_train": True, "lr": None, "min_lr": 1e-4, "lr_warmup_init": 1e-5}
    first, second = (train(tmp_path, name, alone)[0] for name in ("first", "second"))
    assert first["validation_loss"] == second["validation_loss"]
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_a_complete_run_does_not_write_its_last_checkpoint_again(tmp_path: Path) -> None:
    keys = {"save": "ckpt", "save_interval": 6, "auto_continue_train": True}
    train(tmp_path, "run", keys)
    folder = tmp_path / "g" / "u" / "run" / "ckpt" / "iter_0000006"
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(train(tmp_path, "run", keys)) == 6
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


@pytest.mark.parametrize("meets", [True, False])
def test_barrier_with_l1_time_makes_ranks_meet(tmp_path: Path, meets: bool) -> None:
    container = build_container(tmp_path, "run", 2, {"barrier_with_L1_time": meets, "timing_log_level": 1, "train_iters": 2})
    meetings = run_ranks(_meetings, 2, container)
    assert meetings == ([meetings[0]] * 2 if meets else [0, 0])
    assert (meetings[0] > 0) is meets


def _meetings(rank: int, container: ConfigContainer) -> int:
    calls: list[int] = []
    barrier = dist.barrier
    dist.barrier = lambda *a, **k: (calls.append(1), barrier(*a, **k))
    pretrain(container, process_start=0.0)
    return len(calls)


def test_data_parallel_random_init_gives_ranks_streams_of_their_own_and_equal_weights(tmp_path: Path) -> None:
    keys = {"hidden_dropout": 0.5, "data_sharding": False, "train_iters": 2}
    plain, own = (train(tmp_path, f"own{on}", {**keys, "data_parallel_random_init": on}, ranks=2) for on in (False, True))
    assert plain[0]["lm_loss"] != own[0]["lm_loss"]
    still = {**keys, "hidden_dropout": 0.0}
    plain, own = (train(tmp_path, f"still{on}", {**still, "data_parallel_random_init": on}, ranks=2) for on in (False, True))
    assert [row["lm_loss"] for row in plain] == [row["lm_loss"] for row in own]


def test_replicas_that_drift_apart_end_the_run(tmp_path: Path) -> None:
    """`check_weight_hash_across_dp_replicas_interval`: a flipped weight on one rank is found at the next comparison."""
    keys = {"check_weight_hash_across_dp_replicas_interval": 2, "use_distributed_optimizer": False}
    assert len(train(tmp_path, "sound", keys, ranks=2)) == 6
    container = build_container(tmp_path, "broken", 2, keys)
    messages = run_ranks(_fails_with_a_flipped_weight, 2, container)
    expected = "weights differ between data-parallel replicas after iteration 4: decoder.final_layernorm.weight on rank(s) 1"
    assert all(expected in message for message in messages), messages


def _fails_with_a_flipped_weight(rank: int, container: ConfigContainer) -> str:
    compare = ReplicaCheck._compare

    def flip_after(self: ReplicaCheck, iteration: int) -> None:
        compare(self, iteration)
        if rank == 1:
            weight = self._parameters["decoder.final_layernorm.weight"]
            weight.data[0] += 1e-7

    ReplicaCheck._compare = flip_after  # type: ignore[method-assign]
    return _fails(rank, container)


def test_ranks_that_see_other_checkpoints_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, "run", {"save": "ckpt", "save_interval": 3})
    folder = tmp_path / "g" / "u" / "run" / "ckpt"
    container = build_container(tmp_path, "run", 2, {"load": str(folder)})
    messages = run_ranks(_fails_without_the_first_checkpoint, 2, container)
    assert all("rank(s) 1 of 2 have another checkpoint to start from" in message for message in messages), messages
    shown = f"than rank 0: {folder}/iter_0000003 on rank 1, {folder}/iter_0000006 on rank 0"
    assert all(shown in message for message in messages), messages


def _fails_without_the_first_checkpoint(rank: int, container: ConfigContainer) -> str:
    checkpoint = container.checkpoint if rank == 0 else replace(container.checkpoint, ckpt_step=3)
    found = find_start(checkpoint)
    pretrain_module.find_start = lambda _, **__: found  # type: ignore[attr-defined]
    return _fails(rank, container)


def test_evaluation_averages_over_tokens_and_does_not_depend_on_ranks(tmp_path: Path) -> None:
    keys = {"eval_iters": 2, "eval_interval": 2, "eod_mask_loss": True, "train_iters": 2}
    one, two = (train(tmp_path, f"dp{n}", keys, ranks=n) for n in (1, 2))
    assert two[1]["validation_loss"] == pytest.approx(one[1]["validation_loss"], rel=1e-6)


def test_a_finished_run_that_is_started_again_has_nothing_to_evaluate(tmp_path: Path) -> None:
    keys = {"train_iters": 2, "save": "ckpt", "eval_iters": 1, "eval_interval": 5, "auto_continue_train": True}
    once = train(tmp_path, "run", keys)
    assert [row["iteration"] for row in once] == [1, 2, 2]
    assert train(tmp_path, "run", keys) == once


def test_full_validation_walks_the_whole_set_each_time(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=40)
    data = {"mock_data": False, "data_path": str(corpus), "split": "70,30,0"}
    keys = {"full_validation": True, "eval_interval": 1, "train_iters": 2, "lr": 0.0, "min_lr": 0.0}
    rows = train(tmp_path, "run", {**data, **keys})
    assert rows[0]["validation_loss"] == rows[1]["validation_loss"]


def test_full_validation_does_not_depend_on_how_the_set_is_cut(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=40)
    data = {"mock_data": False, "data_path": str(corpus), "split": "70,30,0", "eod_mask_loss": True}
    keys = {"full_validation": True, "eval_interval": 1, "train_iters": 1, "lr": 0.0, "min_lr": 0.0}
    cuts = [(1, 1), (4, 1), (8, 1), (4, 2)]
    runs = [train(tmp_path, f"m{m}dp{n}", {**data, **keys, "micro_batch_size": m}, ranks=n) for m, n in cuts]
    losses = [rows[0]["validation_loss"] for rows in runs]
    assert losses == pytest.approx([losses[0]] * len(cuts), rel=1e-6)


@pytest.mark.parametrize("gzip", [False, True])
def test_profiler_writes_the_window_as_it_is_asked_to(gzip: bool, tmp_path: Path) -> None:
    window = {"profile": True, "use_pytorch_profiler": True, "profile_step_start": 2, "profile_step_end": 4}
    train(tmp_path, "run", {**window, "torch_profiler_use_gzip": gzip, "torch_profiler_with_stack": False, "train_iters": 3})
    (trace,) = (tmp_path / "g" / "u" / "run").rglob("*.pt.trace.json*")
    assert trace.name.endswith(".gz") == gzip
    if not gzip:
        events = json.loads(trace.read_text())["traceEvents"]
        assert any("mm" in event.get("name", "") for event in events)


def _fails(_rank: int, container: ConfigContainer) -> str:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("primus").addHandler(handler)
    try:
        pretrain(container, process_start=0.0)
    except PrimusError as error:
        return f"{type(error).__name__}: {error}"
    return "\n".join(messages)


def test_a_container_that_asks_for_more_ranks_than_there_are_is_refused(tmp_path: Path) -> None:
    container = build_container(tmp_path, "run", 1, {})
    parallel = replace(container.model.parallel, expert_model_parallel_size=2)
    with pytest.raises(ConfigError, match="1 processes cannot be divided into groups of 2"):
        pretrain(replace(container, model=replace(container.model, parallel=parallel)), process_start=0.0)


def test_nan_loss_stops_the_run_and_says_where(tmp_path: Path) -> None:
    keys = {"lr": 1e30, "min_lr": 1e30, "clip_grad": 0.0, "optimizer": "sgd", "lr_decay_style": "constant"}
    (message,) = run_ranks(_fails, 1, build_container(tmp_path, "run", 1, keys))
    assert message.startswith("RunError: found ")
    assert "iteration" in message
    assert "rank 0" in message
