"""From a container to running workers: writes `<run>/config.yaml` and becomes the process that runs it.

The command line does not stay behind as a parent: it replaces itself (exec), so that signals, exit codes and process trees are
those of the run. `primus.engine.worker` runs one rank, `primus.engine.elastic` the ranks of this machine.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from primus.core.launch.place import Place
from primus.cores import num_cores
from primus.errors import InputError
from primus.log import log_file
from primus.run_config import write_config
from primus.run_lock import check_free

__all__ = ["become", "exchange_command", "sample_command", "start"]

Become = Callable[[list[str], Mapping[str, str]], None]


def start(
    container: str,
    run_folder: Path,
    place: Place,
    env: Mapping[str, str],
    become: Become,
    *,
    notices: Sequence[str] = (),
) -> None:
    """Hand the process over to the run that `container` (the text of a container file) describes.

    `notices` have been told on the console; rank 0's log keeps them.
    """
    if place.rank == 0:
        check_free(run_folder)
        config = _write_config(container, run_folder)
        _log_notices(notices, run_folder)
    else:
        config = _private_copy(container)
    worker_env = {**env, **place.env}
    worker_env.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // place.local_size)))
    become([sys.executable, "-m", *_module(place, config)], worker_env)


def become(command: list[str], env: Mapping[str, str]) -> None:
    """Replace this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, dict(env))


def sample_command(config: Path, options: Mapping[str, object]) -> list[str]:
    """Return the command that samples from a run; `options` are the words of `primus.engine.generate`."""
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "primus.engine.generate", str(config), *words]


def exchange_command(verb: str, source: Path, out: Path, options: Mapping[str, object]) -> list[str]:
    """Return the command that imports or exports weights; verb and options are words of `primus.engine.exchange`."""
    words = [f"{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "primus.engine.exchange", verb, str(source), f"--out={out}", *words]


def _write_config(container: str, run_folder: Path) -> str:
    try:
        return str(write_config(container, run_folder))
    except OSError as error:
        raise InputError(f"the run folder {run_folder} cannot be written: {error}. Choose another workspace.") from error


def _log_notices(notices: Sequence[str], run_folder: Path) -> None:
    if not notices:
        return
    with closing(log_file(run_folder / "logs" / "rank-0.log")) as file:
        for notice in notices:
            file.emit(logging.LogRecord(__name__, logging.INFO, __file__, 0, "note: %s", (notice,), None))


def _private_copy(container: str) -> str:
    """Return a path under which this process and what it becomes read `container`.

    Only rank 0 writes the run folder; an unlinked file spares the others from waiting for it and leaves nothing behind.
    """
    number, name = tempfile.mkstemp(prefix="primus-", suffix=".yaml")
    Path(name).unlink()
    os.write(number, container.encode())
    os.lseek(number, 0, os.SEEK_SET)
    os.set_inheritable(number, True)
    return f"/dev/fd/{number}"


def _module(place: Place, config: str) -> list[str]:
    if place.kind != "parent":
        return ["primus.engine.worker", config]
    words = ["primus.engine.elastic", config, "--nproc-per-node", str(place.local_size)]
    if place.endpoint is not None:
        words += ["--nnodes", str(place.world_size // place.local_size), "--endpoint", place.endpoint]
    if place.node_rank is not None:
        words += ["--node-rank", str(place.node_rank)]
    return words
