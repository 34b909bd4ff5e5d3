"""`progress.txt`: its lines and their throughputs."""

import re
from pathlib import Path

import pytest
from small_run import single_run

from primus.engine.checkpoint.progress import Progress
from primus.engine.checkpoint.save import save_checkpoint
from primus.engine.config import CheckpointConfig


def lines(base: Path) -> list[str]:
    return (base / "progress.txt").read_text().splitlines()


def test_start_save_and_deletion_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "81")
    config = CheckpointConfig(save=str(tmp_path), save_retain_interval=10)
    progress = Progress(tmp_path, world_size=1, flops=0.0)
    progress.started()
    for iteration in (2, 4):
        contents = single_run(values=1).contents(iteration)
        contents.state.num_floating_point_operations_so_far = 1.5e18
        contents.container["model"].setdefault("seq_length", 10**7)  # type: ignore[attr-defined]
        save_checkpoint(config, contents, mesh=single_run(values=1).mesh, progress=progress)
    start, first, _, deleted = lines(tmp_path)
    head = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\tJob ID: 81\t# GPUs: 1\t"
    assert re.fullmatch(head + "Starting job", start)
    assert re.fullmatch(
        head
        + r"Saved checkpoint\tIteration: 2\tJob throughput: [\d.]+ TFLOP/s/GPU\tCumulative throughput: [\d.]+ TFLOP/s/GPU\t"
        r"Floating-point operations: 1\.50e\+18\tTokens \(in billions\): 0\.16",
        first,
    )
    assert re.fullmatch(head + r"Deleted checkpoint\tIteration: 2", deleted)


def cumulative(base: Path, history: str, *, world_size: int, flops: float) -> float:
    (base / "progress.txt").write_text(history)
    Progress(base, world_size=world_size, flops=0.0).saved(iteration=9, flops=flops, tokens=0)
    return float(lines(base)[-1].partition("Cumulative throughput: ")[2].partition(" ")[0])


HISTORY = (
    "2020-01-01 00:00:00\tJob ID: \t# GPUs: 2\tStarting job\n"
    "2020-01-01 01:00:00\tJob ID: \t# GPUs: 2\tSaved checkpoint\tIteration: 3\tFloating-point operations: 1.00e+24\n"
)


def test_cumulative_throughput_goes_back_to_the_first_job_of_this_world(tmp_path: Path) -> None:
    """Six years and more at 2 devices: the slow average shows that the count began in 2020."""
    assert 0 < cumulative(tmp_path, HISTORY, world_size=2, flops=1e24) < 1e24 / 1e12 / 2 / (6 * 365 * 86400)


def test_cumulative_throughput_starts_anew_in_another_world(tmp_path: Path) -> None:
    assert cumulative(tmp_path, HISTORY, world_size=4, flops=1e24) > 1e10


def test_a_line_cut_short_is_passed_over(tmp_path: Path) -> None:
    assert cumulative(tmp_path, "2020-01-\n" + HISTORY, world_size=2, flops=1e24) < 1e10
