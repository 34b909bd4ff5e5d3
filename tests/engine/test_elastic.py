"""The elastic agent's manners: exit codes, the first cause, signals. Each test starts an agent with stand-in workers."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from programs import Program

from primus.engine import elastic

WORKER = """
import os, signal, sys, time
from pathlib import Path
from primus.engine.cause import leave_cause
from primus.engine.lifeline import end_with_launcher
rank = int(os.environ["RANK"])
folder = Path(sys.argv[1]).parent
"""


@pytest.fixture
def start(tmp_path: Path):
    """Return a function that starts two workers with this body, and end what is left of them."""
    started: list[Program] = []

    def run(body: str) -> Program:
        worker = tmp_path / "worker.py"
        worker.write_text(WORKER + textwrap.dedent(body))
        words = (str(tmp_path / "config.yaml"), "--nproc-per-node", "2")
        started.append(
            Program(partial(elastic.main, worker=[str(worker)]), *words, stderr=tmp_path / "said", TMPDIR=str(tmp_path))
        )
        return started[-1]

    yield run
    for program in started:
        program.kill()


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.02)


def test_workers_that_end_well_give_0_and_no_word(start):
    program = start("assert os.environ['WORLD_SIZE'] == '2'")
    assert program.end()[1] == ""
    assert program.returncode == 0


def test_the_rank_that_failed_first_gives_code_and_last_words(start):
    program = start(
        """
        if rank == 1:
            leave_cause("data/x.bin is truncated", exit_code=2, log=Path("logs/rank-1.log"))
            (folder / "failed").touch()
            sys.exit(2)
        while not (folder / "failed").exists():
            time.sleep(0.01)
        leave_cause("connection closed by peer", exit_code=3, log=None)
        sys.exit(3)
        """
    )
    assert program.end()[1] == "rank 1 failed first:\ndata/x.bin is truncated\nIts log: logs/rank-1.log\n"
    assert program.returncode == 2


def test_a_killed_rank_is_named_and_the_others_are_ended(start):
    program = start(
        """
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
        """
    )
    message = program.end()[1]
    assert message.startswith("rank 0 failed first: it was killed by SIGKILL. The system kills")
    assert program.returncode == 3


def test_sigterm_reaches_workers_that_then_end_well(start, tmp_path):
    program = start(
        """
        def save(*_):
            (folder / f"saved-{rank}").touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        (folder / f"ready-{rank}").touch()
        time.sleep(600)
        """
    )
    for rank in range(2):
        wait_for(tmp_path / f"ready-{rank}")
    program.send_signal(signal.SIGTERM)
    assert program.end()[1] == ""
    assert program.returncode == 0
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_workers_do_not_outlive_a_killed_agent(start, tmp_path):
    program = start(
        """
        end_with_launcher()
        (folder / f"{os.getpid()}.pid").touch()
        (folder / f"ready-{rank}").touch()
        time.sleep(600)
        """
    )
    for rank in range(2):
        wait_for(tmp_path / f"ready-{rank}")
    program.kill()
    deadline = time.monotonic() + 30
    while any(_is_running(file.stem) for file in tmp_path.glob("*.pid")):
        assert time.monotonic() < deadline, "a worker lives on"
        time.sleep(0.02)


def _is_running(pid: str) -> bool:
    """Tell a live process from one that waits for its parent to take notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigterm_ends_workers_that_do_not_handle_it(start, tmp_path):
    program = start("(folder / f'ready-{rank}').touch(); time.sleep(600)")
    for rank in range(2):
        wait_for(tmp_path / f"ready-{rank}")
    program.send_signal(signal.SIGTERM)
    program.end()
    assert program.returncode == 128 + signal.SIGTERM


def test_the_first_cause_is_the_one_that_was_caught_first_however_long_the_rank_took_to_end(start):
    program = start(
        """
        from primus.engine.cause import noting_time
        try:
            with noting_time():
                if rank == 1:
                    raise ValueError("first")
                while not (folder / "caught").exists():
                    time.sleep(0.01)
                raise ValueError("second")
        except ValueError as error:
            (folder / "caught").touch()
            while rank == 1 and not (folder / "left").exists():
                time.sleep(0.01)
            leave_cause(str(error), exit_code=3, log=None, error=error)
            (folder / "left").touch()
            while len(list(folder.rglob("error.json"))) < 2:
                time.sleep(0.01)
            sys.exit(3)
        """
    )
    assert program.end()[1] == "rank 1 failed first:\nfirst\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_worker_whose_agent_was_gone_before_it_looked_ends_too():
    code = "from primus.engine.lifeline import end_with_launcher; end_with_launcher(); print('alive')"
    for launcher, expected in ((os.getpid(), "alive\n"), (1, "")):
        environment = {**os.environ, "TORCHELASTIC_RUN_ID": "primus", "PRIMUS_LAUNCHER_PID": str(launcher)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == expected
        assert (done.returncode == 0) == bool(expected)
