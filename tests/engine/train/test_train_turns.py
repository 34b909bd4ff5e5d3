"""Ranks that build one after the other: longer than a collective may take, and without waiting for one that failed."""

import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from ranks import run_ranks

from primus.engine.parallel.mesh import Group
from primus.engine.train.turns import in_turn
from primus.errors import InputError, RunError


def _world(rank: int, size: int) -> Group:
    ranks = tuple(range(size))
    return Group(ranks, rank, dist.new_group(list(ranks), timeout=timedelta(seconds=1)))


def _build(rank: int, size: int, folder: str, slow: int, failing: int) -> str:
    def build() -> str:
        with (Path(folder) / "order").open("a") as file:
            file.write(f"{rank} ")
        time.sleep(1.5 if rank == slow else 0.0)
        if rank == failing:
            raise InputError("no data")
        return f"built {rank}"

    try:
        return in_turn(build, _world(rank, size))
    except (InputError, RunError) as error:
        return f"{type(error).__name__}: {error}"


def test_rank_0_is_first_and_may_take_longer_than_a_collective(tmp_path: Path) -> None:
    assert run_ranks(_build, 3, 3, str(tmp_path), 0, -1) == ["built 0", "built 1", "built 2"]
    assert (tmp_path / "order").read_text().split()[0] == "0"


def test_none_goes_on_while_another_still_builds(tmp_path: Path) -> None:
    assert run_ranks(_build, 2, 2, str(tmp_path), 1, -1) == ["built 0", "built 1"]


def test_a_rank_that_fails_lets_nobody_wait(tmp_path: Path) -> None:
    for failing in (0, 1):
        found = run_ranks(_build, 2, 2, str(tmp_path), -1, failing, timeout=20.0)
        expected = {
            failing: "InputError: no data",
            1 - failing: f"RunError: rank {failing} failed to open the data; its own message says why",
        }
        assert found == [expected[0], expected[1]]


def test_a_rank_alone_just_builds() -> None:
    assert in_turn(lambda: 7, Group((0,), 0)) == 7
