"""What the command line becomes."""

import subprocess
import sys
from pathlib import Path

import pytest

from primus.core.launch import LaunchOptions, find_place, start
from primus.errors import InputError


def started(folder, options=None, env=None):
    """Return the command and environment that a start would become."""
    calls = []
    env = env or {}
    start("a: 1\n", folder, find_place(options or LaunchOptions(), env), env, lambda command, new: calls.append((command, new)))
    (call,) = calls
    return call


def test_a_single_process_becomes_the_worker_on_the_written_container(tmp_path):
    command, env = started(tmp_path / "run", env={"PATH": "/bin"})
    assert command == [sys.executable, "-m", "primus.engine.worker", str(tmp_path / "run" / "config.yaml")]
    assert (tmp_path / "run" / "config.yaml").read_text() == "a: 1\n"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".config.before.yaml", "config.yaml"]
    assert env["PATH"] == "/bin"


def test_several_processes_become_the_elastic_agent(tmp_path):
    options = LaunchOptions(nproc_per_node=2, nnodes=2, node_rank=1, master_addr="h", master_port=9)
    command, _ = started(tmp_path, options)
    assert command[2:] == [
        "primus.engine.elastic",
        str(tmp_path / "config.yaml"),
        *["--nproc-per-node", "2", "--nnodes", "2", "--endpoint", "h:9", "--node-rank", "1"],
    ]


def test_threads_are_shared_out_unless_the_user_did(tmp_path):
    alone = int(started(tmp_path)[1]["OMP_NUM_THREADS"])
    assert started(tmp_path, LaunchOptions(nproc_per_node=alone + 1))[1]["OMP_NUM_THREADS"] == "1"
    assert started(tmp_path, env={"OMP_NUM_THREADS": "7"})[1]["OMP_NUM_THREADS"] == "7"


def test_only_rank_0_writes_the_run_folder(tmp_path):
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    command, _ = started(tmp_path / "run", env=env)
    assert not (tmp_path / "run").exists()
    assert Path(command[-1]).read_text() == "a: 1\n"
    assert Path(command[-1]).read_text() == "a: 1\n"


def test_an_unwritable_run_folder_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        started(tmp_path / "file" / "run")


def test_a_folder_in_which_a_run_is_under_way_is_left_alone(tmp_path):
    start_words = "import sys; from pathlib import Path; from primus.run_lock import occupy; occupy(Path(sys.argv[1]))"
    holder = subprocess.Popen(
        [sys.executable, "-c", f"{start_words}; print(flush=True); input()", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        holder.stdout.readline()
        with pytest.raises(InputError, match=f"process {holder.pid} on .* is training in the run folder"):
            started(tmp_path)
        assert not (tmp_path / "config.yaml").exists()
    finally:
        holder.kill()
        holder.communicate()
    started(tmp_path)
