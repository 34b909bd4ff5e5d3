"""A kill -9 at any moment of a save leaves a checkpoint that loads whole, and the next run goes on from it."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from small_run import single_run

from primus.engine.checkpoint.folder import complete_iterations, newest
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.sharding import Chunk, Shards

SIZE = 200_000


def config(folder: Path, ckpt_format: str) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), load=str(folder), ckpt_format=ckpt_format, save_retain_interval=5)  # type: ignore[arg-type]


def big(value: float) -> Shards:
    return Shards((SIZE,), torch.float32, [Chunk((0,), torch.full((SIZE,), value))])


def save_for_ever(c: CheckpointConfig, first: int) -> None:
    """Save one iteration after the other until killed."""
    torch.set_num_threads(1)
    for iteration in range(first, 10**7):
        run = single_run(values=iteration)
        run.model["big"] = big(float(iteration))
        run.save(c, iteration)


def check_newest(c: CheckpointConfig) -> int:
    """Load the newest checkpoint and hold every value against its iteration."""
    run = single_run(values=0)
    run.model["big"] = big(0.0)
    iteration = run.load(c).state.iteration
    assert run.model.pop("big").chunks[0].data.eq(iteration).all()
    run.check(values=iteration)
    return iteration


@pytest.mark.parametrize("ckpt_format", ["torch_dist", "torch"])
def test_twenty_kills_lose_no_finished_checkpoint(tmp_path: Path, ckpt_format: str) -> None:
    c, chance = config(tmp_path, ckpt_format), random.Random(3)
    iteration, caught = 0, 0
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            try:
                save_for_ever(c, iteration + 1)
            finally:
                os._exit(1)
        while not complete_iterations(tmp_path):
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        caught += any(p.name.startswith(".iter_") for p in tmp_path.iterdir())
        found = check_newest(c)
        assert found >= iteration
        assert newest(tmp_path)[0] == found
        iteration = found
    assert iteration > 0
    assert caught, "no kill fell into a save; the test proves nothing"


def test_a_save_killed_while_replacing_its_iteration_loses_nothing(tmp_path: Path) -> None:
    """The folder is moved aside for its successor: the one moment without an `iter_` folder of that name."""
    c = config(tmp_path, "torch_dist")
    folder = single_run(values=4).save(c, 4)
    folder.rename(tmp_path / ".iter_0000004.replaced-1-1")
    fresh = single_run(values=0)
    assert fresh.load(c).state.iteration == 4
    fresh.check(values=4)
    single_run(values=5).save(c, 5)
    assert complete_iterations(tmp_path) == [5]
