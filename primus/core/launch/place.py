"""Where this process stands: alone, the parent of the ranks to start, or one rank that a launcher has started.

`find_place` is the name to use. Under torchrun (RANK is set) and under `srun` (SLURM_PROCID is set) a process joins as the rank
it is told; launch options given under SLURM make it a parent instead (one task a node that spawns its own ranks).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from primus.core.launch.options import LaunchOptions
from primus.errors import InputError

__all__ = ["Place", "check_numbers", "find_place", "first_host"]

_DEFAULT_PORT = 29500
_NUMBERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID",
)  # fmt: skip
"""Variables of launchers that are read as numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """This process among those of the run."""

    kind: Literal["alone", "parent", "joined"]
    """`parent` starts the ranks of this node; `joined` is itself a rank."""
    world_size: int = 1
    """Ranks of the whole run."""
    local_size: int = 1
    """Ranks on this machine."""
    rank: int = 0
    """`joined`: its global rank."""
    local_rank: int = 0
    """`joined`: its rank on this machine."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the worker reads, where the environment says otherwise."""
    node_rank: int | None = None
    """`parent`: this machine's number; None if machines find their numbers themselves."""
    endpoint: str | None = None
    """`parent`: HOST:PORT where several machines meet."""
    notices: tuple[str, ...] = ()
    """Lines about options that do nothing here."""

    @property
    def speaks(self) -> bool:
        """Tell whether this process reports to the user: one does on each machine."""
        return self.local_rank == 0


def find_place(options: LaunchOptions, env: Mapping[str, str]) -> Place:
    """Return this process's place; InputError if options and environment contradict each other."""
    check_numbers(env)
    if "RANK" in env:
        if options.given:
            raise InputError(
                f"{', '.join(options.given)} cannot be used here: RANK is set ({env['RANK']}), so a launcher such as torchrun "
                "has started this process as one rank. Leave the options out, or unset RANK."
            )
        return _under_torchrun(env)
    if int(env.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in env and not options.given:
        return _under_slurm(env)
    if not options.given and int(env.get("WORLD_SIZE", "1")) != 1:
        raise InputError(
            f"WORLD_SIZE is set ({env['WORLD_SIZE']}), but RANK is not: a launcher such as torchrun sets both. Unset "
            "WORLD_SIZE, or start the processes with --nproc-per-node."
        )
    return _own(options, env)


def check_numbers(env: Mapping[str, str]) -> None:
    """Refuse a launcher's variable that is no number."""
    wrong = [name for name in _NUMBERS if name in env and not re.fullmatch(r"\d+", env[name])]
    if wrong:
        raise InputError(
            [f"{name} is {env[name]!r} in the environment: a launcher sets it to a number; unset it" for name in wrong]
        )


def _own(options: LaunchOptions, env: Mapping[str, str]) -> Place:
    """Return the place of a process that starts the ranks itself."""
    local, nodes = options.nproc_per_node or 1, options.nnodes or 1
    problems = [
        f"--{name.replace('_', '-')} {number} must be at least 1"
        for name in ("nproc_per_node", "nnodes")
        if (number := getattr(options, name)) is not None and number < 1
    ]
    endpoint = options.rdzv_endpoint
    if nodes > 1 and endpoint is None:
        if options.master_addr is None or options.node_rank is None:
            problems.append(f"--nnodes {nodes} needs --rdzv-endpoint HOST:PORT, or --node-rank with --master-addr")
        else:
            endpoint = f"{options.master_addr}:{options.master_port or _DEFAULT_PORT}"
    if endpoint is not None and not re.fullmatch(r".+:\d+", endpoint):
        problems.append(f"{endpoint!r} is not a HOST:PORT where machines can meet")
    if options.node_rank is not None and not 0 <= options.node_rank < nodes:
        problems.append(f"--node-rank {options.node_rank} must lie between 0 and {nodes - 1} (--nnodes {nodes})")
    if problems:
        raise InputError(problems)
    notices = tuple(_idle_options(options, local=local, nodes=nodes))
    if local * nodes == 1:
        # The options win over what another launcher left in the environment.
        return Place(kind="alone", env={"WORLD_SIZE": "1"} if "WORLD_SIZE" in env else {}, notices=notices)
    node_rank = options.node_rank if options.rdzv_endpoint is None else None
    return Place(
        kind="parent", world_size=local * nodes, local_size=local, node_rank=node_rank, endpoint=endpoint, notices=notices
    )


def _idle_options(options: LaunchOptions, *, local: int, nodes: int) -> Iterator[str]:
    """Name meeting points that nobody uses."""
    unused = ["--node-rank", "--master-addr", "--master-port"]
    if nodes == 1:
        unused += ["--rdzv-endpoint"] * (local == 1)
        reason = "the run has one machine, and --nnodes says how many there are"
    elif options.rdzv_endpoint is not None:
        reason = f"the machines meet at --rdzv-endpoint {options.rdzv_endpoint} and find their numbers themselves"
    else:
        return
    idle = [option for option in unused if option in options.given]
    if idle:
        yield f"{' and '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect: {reason}."


def _under_torchrun(env: Mapping[str, str]) -> Place:
    missing = [name for name in ("WORLD_SIZE", "LOCAL_RANK") if name not in env]
    if int(env.get("WORLD_SIZE", "1")) > 1:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]
    if missing:
        raise InputError(
            f"RANK is set ({env['RANK']}), but {', '.join(missing)} is not: a launcher sets all of them; or unset RANK"
        )
    return Place(
        kind="joined",
        world_size=int(env["WORLD_SIZE"]),
        local_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
    )


def _under_slurm(env: Mapping[str, str]) -> Place:
    """Translate SLURM's variables; every task computes the same meeting point from the job."""
    rank, world_size, local_rank = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"]), int(env.get("SLURM_LOCALID", "0"))
    tasks = re.match(r"\d+", env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or "1")
    local_size = int(tasks.group()) if tasks else 1
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if not nodes and "MASTER_ADDR" not in env:
        raise InputError("SLURM_PROCID is set, but neither SLURM_JOB_NODELIST nor MASTER_ADDR says where the ranks meet")
    # Jobs that share a node must not share a port.
    port = str(20000 + int(env.get("SLURM_JOB_ID", "0")) % 20000)
    translated = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": env.get("MASTER_ADDR") or first_host(nodes or ""),
        "MASTER_PORT": env.get("MASTER_PORT", port),
    }
    return Place(kind="joined", world_size=world_size, local_size=local_size, rank=rank, local_rank=local_rank, env=translated)


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list such as `gpu[003-010,12],login1`."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""
