"""Alone, parent or joined: from options and environment."""

import pytest

from primus.core.launch import LaunchOptions, find_place
from primus.core.launch.place import first_host
from primus.errors import InputError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_JOB_NODELIST": "gpu[007-008]",
    "SLURM_JOB_ID": "123",
}


def test_one_process_without_a_launcher_is_alone():
    place = find_place(LaunchOptions(), {})
    assert (place.kind, place.world_size, place.rank, place.speaks) == ("alone", 1, 0, True)
    assert find_place(LaunchOptions(nproc_per_node=1), {}).kind == "alone"


def test_several_processes_have_a_parent():
    place = find_place(LaunchOptions(nproc_per_node=2), {})
    assert (place.kind, place.world_size, place.local_size, place.endpoint) == ("parent", 2, 2, None)


def test_numbered_nodes_meet_at_the_master():
    options = LaunchOptions(nproc_per_node=8, nnodes=2, node_rank=1, master_addr="host0", master_port=4000)
    place = find_place(options, {})
    assert (place.world_size, place.node_rank, place.endpoint) == (16, 1, "host0:4000")


def test_unnumbered_nodes_meet_at_the_endpoint():
    place = find_place(LaunchOptions(nproc_per_node=8, nnodes=2, rdzv_endpoint="host0:4000"), {})
    assert (place.node_rank, place.endpoint) == (None, "host0:4000")


def test_under_torchrun_a_process_joins_as_its_rank():
    place = find_place(LaunchOptions(), TORCHRUN)
    assert (place.kind, place.world_size, place.rank, place.local_rank, place.local_size) == ("joined", 4, 3, 1, 2)
    assert not place.speaks
    assert place.env == {}


def test_under_slurm_a_task_joins_and_finds_the_first_host():
    place = find_place(LaunchOptions(), SLURM)
    assert (place.kind, place.world_size, place.rank, place.local_rank, place.local_size) == ("joined", 8, 5, 1, 4)
    assert place.env == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu007",
        "MASTER_PORT": "20123",
    }


def test_one_task_or_launch_options_under_slurm_do_not_join():
    assert find_place(LaunchOptions(), {**SLURM, "SLURM_NTASKS": "1"}).kind == "alone"
    assert find_place(LaunchOptions(nproc_per_node=2), SLURM).kind == "parent"


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("a1", "a1"), ("a1,b2", "a1"), ("a[003-010,12],b", "a003"), ("a[7,9]", "a7"), ("n[1-2]-ib,x", "n1-ib"), ("", "")],
)
def test_the_first_host_of_a_node_list(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("options", "env", "message"),
    [
        (LaunchOptions(nproc_per_node=0), {}, "--nproc-per-node 0 must be at least 1"),
        (LaunchOptions(nnodes=2), {}, "--nnodes 2 needs --rdzv-endpoint HOST:PORT, or --node-rank with --master-addr"),
        (LaunchOptions(nnodes=2, node_rank=2, master_addr="a"), {}, "--node-rank 2 must lie between 0 and 1 (--nnodes 2)"),
        (LaunchOptions(nnodes=2, rdzv_endpoint="host"), {}, "'host' is not a HOST:PORT"),
        (LaunchOptions(nproc_per_node=2), TORCHRUN, "--nproc-per-node cannot be used here: RANK is set (3)"),
        (LaunchOptions(), {"RANK": "0"}, "RANK is set (0), but WORLD_SIZE, LOCAL_RANK is not"),
        (LaunchOptions(), {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "but MASTER_ADDR, MASTER_PORT is not"),
        (LaunchOptions(), {"WORLD_SIZE": "4"}, "WORLD_SIZE is set (4), but RANK is not"),
        (LaunchOptions(), {"WORLD_SIZE": "abc"}, "WORLD_SIZE is 'abc' in the environment"),
        (LaunchOptions(), {**TORCHRUN, "RANK": "-1"}, "RANK is '-1' in the environment"),
        (LaunchOptions(), {**TORCHRUN, "LOCAL_RANK": ""}, "LOCAL_RANK is '' in the environment"),
        (LaunchOptions(), {**SLURM, "SLURM_NTASKS": "8(x2)"}, "SLURM_NTASKS is '8(x2)' in the environment"),
        (LaunchOptions(), {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "neither SLURM_JOB_NODELIST nor MASTER_ADDR"),
    ],
)
def test_a_contradiction_is_told(options, env, message):
    with pytest.raises(InputError) as refused:
        find_place(options, env)
    assert message in str(refused.value)


def test_options_win_over_the_size_that_another_launcher_left():
    assert find_place(LaunchOptions(nproc_per_node=2), {"WORLD_SIZE": "4"}).world_size == 2
    alone = find_place(LaunchOptions(nproc_per_node=1), {"WORLD_SIZE": "4"})
    assert (alone.kind, alone.env) == ("alone", {"WORLD_SIZE": "1"})
    assert find_place(LaunchOptions(), {"WORLD_SIZE": "1"}).kind == "alone"


@pytest.mark.parametrize(
    ("options", "idle", "reason"),
    [
        (LaunchOptions(master_addr="h", master_port=1), "--master-addr and --master-port", "one machine"),
        (LaunchOptions(nproc_per_node=2, node_rank=0), "--node-rank", "one machine"),
        (LaunchOptions(rdzv_endpoint="h:1"), "--rdzv-endpoint", "one machine"),
        (LaunchOptions(nnodes=2, rdzv_endpoint="h:1", master_port=9), "--master-port", "--rdzv-endpoint h:1"),
    ],
)
def test_a_meeting_point_that_nobody_uses_is_announced(options, idle, reason):
    (line,) = find_place(options, {}).notices
    assert line.startswith(f"{idle} ha")
    assert reason in line


def test_a_meeting_point_in_use_is_silent():
    assert find_place(LaunchOptions(nnodes=2, node_rank=1, master_addr="h", master_port=4000), {}).notices == ()
    assert find_place(LaunchOptions(nnodes=2, rdzv_endpoint="h:1"), {}).notices == ()
    assert find_place(LaunchOptions(nproc_per_node=2, rdzv_endpoint="h:1"), {}).notices == ()
