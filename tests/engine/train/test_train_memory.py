"""`profile_memory_iter`: memory of every rank after each iteration, and the allocations of one."""

import json
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from runs import build_container, logged_rank

from primus.engine.config import ConfigContainer
from primus.engine.train.pretrain import pretrain


def logged(folder: Path, number: int, ranks: int = 1, **keys: Any) -> list[str]:
    """Return what each rank of a run of two iterations logs."""
    container = build_container(folder, "run", ranks, {"train_iters": 2, "profile_memory_iter": number, **keys})
    return run_ranks(logged_rank, ranks, container)


def records(folder: Path) -> list[Path]:
    return sorted((folder / "g" / "u" / "run").glob("mem-profile-*"))


def test_every_rank_records_the_allocations_of_the_iteration(tmp_path: Path) -> None:
    texts = logged(tmp_path, 2, ranks=2, pipeline_model_parallel_size=2)
    for rank, text in enumerate(texts):
        assert all(text.count(f"iteration {number} on rank {rank}: mem-max-resident-bytes ") == 1 for number in (1, 2))
    assert [file.name for file in records(tmp_path)] == [f"mem-profile-rank{rank}.pt.trace.json" for rank in range(2)]
    for file in records(tmp_path):
        events = [event["args"] for event in json.loads(file.read_text())["traceEvents"] if event.get("name") == "[memory]"]
        # The hidden states of a microbatch of two samples, in fp32.
        assert any(event["Bytes"] == 2 * 32 * 32 * 4 for event in events)
        assert any(event["Bytes"] < 0 for event in events)


@pytest.mark.parametrize(("number", "says_memory", "warns"), [(-1, False, False), (0, True, False), (3, True, True)])
def test_without_such_an_iteration_there_is_no_record(tmp_path: Path, number: int, says_memory: bool, warns: bool) -> None:
    (text,) = logged(tmp_path, number)
    assert ("iteration 2 on rank 0: mem-max-resident-bytes" in text) == says_memory
    assert ("no allocations were recorded: iteration 3 (profile_memory_iter) was not run" in text) == warns
    assert not records(tmp_path)


def test_a_failing_iteration_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="out of memory"):
        run_ranks(_fails, 1, build_container(tmp_path, "run", 1, {"train_iters": 2, "profile_memory_iter": 1}))
    assert [file.name for file in records(tmp_path)] == ["mem-profile-rank0.pt.trace.json"]


def _fails(_rank: int, container: ConfigContainer) -> None:
    from primus.engine.train.step import TrainStep

    def fail(self: TrainStep, *_: Any, **__: Any) -> None:
        raise AssertionError("out of memory")

    TrainStep.__call__ = fail  # type: ignore[assignment,method-assign]
    pretrain(container, process_start=0.0)
