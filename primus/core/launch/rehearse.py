"""From a container to what one rank of it would hold and exchange, found out in a process of its own, which has torch."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from primus.engine.rehearsal.record import Record, from_json
from primus.errors import EXIT_INPUT, InputError, RunError

__all__ = ["rehearse"]


def rehearse(container: str, *, rank: int, world_size: int, env: Mapping[str, str]) -> Record:
    """Return the record of a rank of the run that `container` (the text of a container file) describes; nothing stays behind.

    InputError or RunError says why there is none.
    """
    with tempfile.TemporaryDirectory(prefix="primus-rehearsal-") as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(container, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "primus.engine.rehearsal", str(file)],
            env={**env, "RANK": str(rank), "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == EXIT_INPUT:
        raise InputError(done.stderr.strip())
    if done.returncode:
        raise RunError(f"the rehearsal of rank {rank} ended with code {done.returncode}:\n{done.stderr.strip()}")
    return from_json(done.stdout)
