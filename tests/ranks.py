"""Run a function on several gloo ranks: forked, one thread each, 0.2 s for four.

A forked rank first sets one thread (a child that touches the parent's OpenMP pool hangs for ever), joins through a file, meets
the others at a barrier and leaves its traceback for the parent, since peers often report only a closed connection.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from primus.engine.parallel.layout import Layout

__all__ = ["layouts_of", "run_ranks"]


def layouts_of(n: int) -> list[Layout]:
    """Return every tensor x data layout of `n` ranks."""
    return [Layout(world_size=n, tensor=tp) for tp in range(1, n + 1) if n % tp == 0]


def run_ranks(function: Callable[..., Any], n: int, *arguments: Any, timeout: float = 120.0) -> list[Any]:
    """Call `function(rank, *arguments)` on `n` ranks; return what each returned. AssertionError shows the failing ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pids = [_fork(function, rank, n, folder, arguments) for rank in range(n)]
        _wait(pids, time.monotonic() + timeout)
        errors = [(folder / f"error-{r}").read_text() for r in range(n) if (folder / f"error-{r}").exists()]
        assert not errors, "\n".join(errors)
        missing = [r for r in range(n) if not (folder / f"result-{r}").exists()]
        assert not missing, f"ranks {missing} ended without a result (killed, or hung for {timeout:.0f} s)"
        return [torch.load(folder / f"result-{r}", weights_only=False) for r in range(n)]


def _fork(function: Callable[..., Any], rank: int, n: int, folder: Path, arguments: tuple[Any, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(rank))
        if n > 1:
            store = f"file://{folder / 'store'}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=n, timeout=timedelta(seconds=60))
            dist.barrier()
        torch.save(function(rank, *arguments), folder / f"result-{rank}")
    except BaseException:  # noqa: BLE001 - the parent shows it
        (folder / f"error-{rank}").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        os._exit(1)
    os._exit(0)


def _wait(pids: list[int], deadline: float) -> None:
    """Wait for all ranks; when one fails or time is up, the others are killed."""
    waiting = set(pids)
    while waiting:
        for pid in tuple(waiting):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            waiting.discard(pid)
            if status:
                deadline = min(deadline, time.monotonic() + 2.0)
        if waiting and time.monotonic() > deadline:
            for pid in waiting:
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            return
        time.sleep(0.005)
