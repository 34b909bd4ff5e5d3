"""Each sink keeps what a run tells it, under the documented names."""

import json
import logging
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from primus import log as logs
from primus.engine.config import LoggerConfig, ProfilingConfig
from primus.engine.observe.averages import BlockAverage
from primus.engine.observe.console import Console, line_of
from primus.engine.observe.metrics_file import MetricsFile, read_metrics
from primus.engine.observe.profiler import Profiler
from primus.engine.observe.report import main as report_main
from primus.engine.observe.scalars import interval_scalars, step_scalars
from primus.engine.observe.sink import Sink, close_all
from primus.engine.observe.tensorboard import TensorBoard
from primus.engine.observe.timers import timer_lines
from primus.engine.observe.trackers import MLflow, WandB

RECORD = {
    "iteration": 4,
    "consumed_samples": 32,
    "lm_loss": 1 / 3,
    "learning_rate": 1e-4,
    "loss_scale": 1.0,
    "global_batch_size": 8,
    "world_size": 1,
    "grad_norm": 0.5,
    "iteration_time_ms": 20.0,
    "tokens_per_second": 1234.5,
    "tflops_per_device": 0.01,
    "validation_loss": 2.0,
    "validation_ppl": math.exp(2.0),
    "timer/optimizer": 3.0,
}


def test_metrics_keep_floats_in_full_precision(tmp_path: Path) -> None:
    sink = MetricsFile(tmp_path / "metrics.jsonl", start_iteration=0)
    sink.write(RECORD)
    sink.close(failed=False)
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert row == RECORD


def test_resumed_metrics_drop_rows_after_the_checkpoint_and_torn_lines(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"iteration": i}) + "\n" for i in (1, 2, 3)) + '{"iteration": 4, "lm_')
    sink = MetricsFile(file, start_iteration=2)
    sink.write({"iteration": 3, "lm_loss": 1.0})
    sink.close(failed=False)
    assert [row["iteration"] for row in read_metrics(file)] == [1, 2, 3]
    assert read_metrics(file)[-1]["lm_loss"] == 1.0


def test_a_run_that_begins_anew_keeps_the_earlier_metrics_aside(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for run in (1.0, 2.0, 3.0):
        sink = MetricsFile(file, start_iteration=0)
        sink.write({"iteration": 1, "lm_loss": run})
        sink.close(failed=False)
    found = {path.name: read_metrics(path)[0]["lm_loss"] for path in tmp_path.iterdir()}
    assert found == {"metrics.jsonl.1": 1.0, "metrics.jsonl.2": 2.0, "metrics.jsonl": 3.0}


def test_an_evaluation_alone_takes_nothing_from_the_metrics(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"iteration": i}) + "\n" for i in (1, 2, 3)))
    for start in (0, 2):
        sink = MetricsFile(file, start_iteration=start)
        sink.write({"iteration": start, "validation_loss": 1.0})
        sink.close(failed=False)
    assert [row["iteration"] for row in read_metrics(file)] == [1, 2, 3, 0, 2]


def test_what_is_not_finite_is_null_and_the_report_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    sink = MetricsFile(file, start_iteration=0)
    for iteration, loss in ((1, 2.0), (2, math.nan), (3, math.inf)):
        sink.write({"iteration": iteration, "lm_loss": loss, "grad_norm": math.nan})
    sink.close(failed=False)
    assert "NaN" not in file.read_text()
    assert [row["lm_loss"] for row in read_metrics(file)] == [2.0, None, None]
    report_main(tmp_path)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "loss.png" in page
    assert "grad_norm.png" not in page


def test_plain_console_line_names_what_a_reader_wants(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Console(total_iterations=10, start_iteration=0, with_throughput=True)
    sink.write(RECORD)
    sink.close(failed=False)
    (line,) = capsys.readouterr().err.splitlines()
    for part in (
        "iteration  4/10",
        "lm loss 3.333333E-01",
        "lr 1.000E-04",
        "grad norm 0.500",
        "tokens/s 1,23",
        "TFLOP/s 0.01",
        "ETA",
    ):
        assert part in line


def test_the_ranks_log_has_the_iterations_and_the_console_has_each_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure(console_level="INFO", file=tmp_path / "rank-0.log")
    try:
        sink = Console(total_iterations=10, start_iteration=0, with_throughput=True)
        sink.write(RECORD)
        sink.write({"iteration": 10, "consumed_samples": 80, "test_loss": 2.0})
        logging.getLogger("primus.x").info("told to both")
    finally:
        for handler in list(logging.getLogger("primus").handlers):
            logging.getLogger("primus").removeHandler(handler)
            handler.close()
        logging.getLogger("primus").propagate = True
    iteration, told = capsys.readouterr().err.splitlines()
    assert iteration.startswith("iteration  4/10 | lm loss 3.3")
    assert told == "told to both"
    lines = (tmp_path / "rank-0.log").read_text().splitlines()
    assert ["iteration  4/10 | lm loss 3.3" in line for line in lines] == [True, False]


def test_a_profiler_that_may_record_nothing_is_not_started(caplog: pytest.LogCaptureFixture) -> None:
    config = ProfilingConfig(profile=True, use_pytorch_profiler=True)
    assert Profiler.is_wanted(config, 0)
    if not torch.cuda.is_available():
        assert not Profiler.is_wanted(replace(config, with_cpu=False), 0)
        assert "nothing is profiled" in caplog.text


def test_throughput_is_shown_only_when_asked_for() -> None:
    assert "TFLOP/s" not in line_of(RECORD, with_throughput=False)


@pytest.mark.parametrize(
    ("gate", "tag"),
    [
        ("log_learning_rate_to_tensorboard", "learning-rate"),
        ("log_batch_size_to_tensorboard", "batch-size"),
        ("log_loss_scale_to_tensorboard", "loss-scale"),
        ("log_world_size_to_tensorboard", "world-size"),
    ],
)
def test_each_gate_switches_its_tag(gate: str, tag: str) -> None:
    assert tag in step_scalars(RECORD, LoggerConfig(**{gate: True}))
    assert tag not in step_scalars(RECORD, LoggerConfig(**{gate: False}))


def test_evaluations_and_timers_have_megatrons_tags() -> None:
    config = LoggerConfig(log_validation_ppl_to_tensorboard=True, log_timers_to_tensorboard=True)
    assert interval_scalars(RECORD, config) == {
        "lm loss validation": 2.0,
        "lm loss validation ppl": math.exp(2.0),
        "iteration-time": 0.02,
        "throughput": 0.01,
        "optimizer-time": 0.003,
    }
    assert set(interval_scalars(RECORD, LoggerConfig())) == {"lm loss validation"}


def test_losses_of_routers_are_shown_where_the_loss_is() -> None:
    balance = {"load_balancing_loss": 1.25, "z_loss": 3.0, "moe/load_balancing_loss_layer_1": 1.5}
    assert interval_scalars(RECORD | balance, LoggerConfig()).items() >= balance.items()
    line = line_of(RECORD | balance, with_throughput=False)
    assert "load balance 1.2500 | z loss 3 |" in line
    assert "layer" not in line, "a model has many"


def test_losses_further_ahead_follow_that_of_the_next_token() -> None:
    line = line_of(RECORD | {"mtp_1_loss": 2.0, "mtp_2_loss": 3.0}, with_throughput=False)
    assert line.startswith("lm loss 3.333333E-01 | mtp 1 loss 2.000000E+00 | mtp 2 loss 3.000000E+00 | lr ")


def test_losses_of_tokens_further_ahead_have_their_tags() -> None:
    record = RECORD | {"mtp_1_loss": 2.5, "mtp_2_loss": 3.0}
    assert interval_scalars(record, LoggerConfig()).items() >= {"mtp_1 loss": 2.5, "mtp_2 loss": 3.0}.items()


def test_tensorboard_holds_scalars_by_iteration_and_by_samples(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(LoggerConfig(), tmp_path, config_text="a: 1")
    sink.step(RECORD)
    sink.write(RECORD)
    sink.close(failed=False)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("lm loss")] == [(4, pytest.approx(1 / 3))]
    assert [e.step for e in events.Scalars("lm loss vs samples")] == [32]
    assert [e.value for e in events.Scalars("lm loss validation")] == [2.0]


def test_tensorboard_interval_thins_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(LoggerConfig(tensorboard_log_interval=2), tmp_path, config_text="")
    for iteration in (1, 2, 3, 4):
        sink.step(RECORD | {"iteration": iteration})
    sink.close(failed=False)
    assert [e.step for e in EventAccumulator(str(tmp_path)).Reload().Scalars("lm loss")] == [2, 4]


@pytest.mark.slow  # W&B starts a service process
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    sink = WandB(LoggerConfig(wandb_project="p", wandb_exp_name="e"), folder=tmp_path, settings={"a": {"b": 1}})
    sink.step(RECORD)
    sink.write(RECORD)
    sink.close(failed=False)
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.filterwarnings("default")  # the tracker's own imports warn about themselves
def test_mlflow_writes_metrics_and_parameters_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = LoggerConfig(mlflow_run_name="r", mlflow_experiment_name="x")
    sink = MLflow(config, folder=tmp_path / "mlruns", settings={"a": {"b": 1}})
    sink.write(RECORD)
    sink.close(failed=False)
    assert _mlflow_status(tmp_path) == 3
    (metric,) = (tmp_path / "mlruns").rglob("metrics/lm_loss")
    assert metric.read_text().split()[2] == "4"
    assert [p.read_text() for p in (tmp_path / "mlruns").rglob("params/a.b")] == ["1"]


def _mlflow_status(folder: Path) -> int:
    """The store's number of a run's status: 3 finished, 4 failed."""
    (meta,) = (file for file in (folder / "mlruns").rglob("meta.yaml") if "run_id" in file.read_text())
    return int(yaml.safe_load(meta.read_text())["status"])


@pytest.mark.filterwarnings("default")  # the tracker's own imports warn about themselves
def test_mlflow_learns_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = LoggerConfig(mlflow_run_name="r", mlflow_experiment_name="y")
    sink = MLflow(config, folder=tmp_path / "mlruns", settings={})
    sink.close(failed=True)
    assert _mlflow_status(tmp_path) == 4


def test_wandb_learns_that_a_run_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("wandb.init", lambda **_: SimpleNamespace(finish=ended.append))
    for fails in (False, True):
        sink = WandB(LoggerConfig(wandb_project="p"), folder=tmp_path, settings={})
        sink.close(failed=fails)
    assert ended == [0, 1]


def test_every_listener_is_closed_whatever_another_does() -> None:
    closed: list[str] = []

    class Listener(Sink):
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        def close(self, *, failed: bool) -> None:
            closed.append(self.name)
            if self.error is not None:
                raise self.error

    with pytest.raises(OSError, match="full disk"):
        close_all([Listener("a", OSError("full disk")), Listener("b"), Listener("c", ValueError("late"))], failed=False)
    assert closed == ["a", "b", "c"]


def test_report_has_curves_and_a_page(tmp_path: Path) -> None:
    rows = [RECORD | {"iteration": i} for i in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "config.yaml").write_text("train:\n  x: <1>\n")
    report_main(tmp_path)
    page = (tmp_path / "report" / "index.html").read_text()
    for name in ("loss.png", "throughput.png", "learning_rate.png", "grad_norm.png"):
        assert (tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG")
        assert name in page
    assert "x: &lt;1&gt;" in page


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps(RECORD | {"iteration": 1}) + "\n")
    (tmp_path / "report").write_text("a file where the folder belongs")
    words = [sys.executable, "-m", "primus.engine.observe.report", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("no report: ")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_timer_report_words_all_three_options() -> None:
    times = {"optimizer": [1.0, 3.0], "unused": [0.0, 0.0]}
    assert timer_lines(times, "max") == ["max time across ranks (ms):", f"    {'optimizer ':.<48s}: 3.00"]
    assert timer_lines(times, "minmax")[1].endswith(": (1.00, 3.00)")
    assert timer_lines(times, "all")[2:] == ["     rank  0: 1.00", "     rank  1: 3.00"]


def test_averages_leave_warm_up_out_and_restart_with_each_block() -> None:
    average = BlockAverage(skip=1, length=2)
    rates = [{"iteration_time_ms": t, "tokens_per_second": 1000 / t, "tflops_per_device": t} for t in (99.0, 10.0, 30.0, 50.0)]
    found = [average.add(rate, 1) for rate in rates]
    assert found[0] == {}
    assert [row["iteration_time_ms_average"] for row in found[1:]] == [10.0, 20.0, 50.0]
    assert found[2]["tokens_per_second_average"] == pytest.approx(1000 / 20.0)


def test_averages_count_iterations_not_records() -> None:
    average = BlockAverage(skip=2, length=10)
    rates = [{"iteration_time_ms": t, "tokens_per_second": 1000 / t, "tflops_per_device": t} for t in (99.0, 10.0, 40.0, 50.0)]
    found = [average.add(rate, iterations) for rate, iterations in zip(rates, (5, 10, 5, 5), strict=True)]
    assert found[0] == {}
    assert found[1]["iteration_time_ms_average"] == 10.0
    assert found[2]["iteration_time_ms_average"] == 40.0
    assert found[3]["iteration_time_ms_average"] == 45.0
    average = BlockAverage(skip=0, length=10)
    average.add(rates[1], 6)
    mixed = average.add(rates[2], 3)
    assert mixed["iteration_time_ms_average"] == pytest.approx(20.0)
    assert mixed["tokens_per_second_average"] == pytest.approx(1000 / 20.0)


def test_console_names_averages() -> None:
    record = RECORD | {"iteration_time_ms_average": 25.0, "tokens_per_second_average": 1000.0}
    assert "ms/it 20.0 (avg 25.0) | tokens/s 1,234 (avg 1,000)" in line_of(record, with_throughput=True)
