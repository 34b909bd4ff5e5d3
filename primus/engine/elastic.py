"""`python -m primus.engine.elastic CONFIG --nproc-per-node N` runs a worker a rank through torch's elastic agent.

It is torchrun with our manners: the exit code is that of the rank that failed first (torchrun gives 1), its cause is the last
thing on the console, and a signal goes to the workers, which then have all the time they need to save (torchrun kills them
after 30 s). A second signal kills them. One attempt: what restarts a job is its scheduler, with `auto_continue_train`.
"""

import argparse
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from primus import log as logs
from primus.engine.cause import Cause, read_cause
from primus.engine.lifeline import name_launcher
from primus.engine.signals import signals_held
from primus.errors import EXIT_DONE, EXIT_INPUT, EXIT_RUN

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

__all__ = ["main"]

# As a program this module is called __main__, which is no child of the logger that is configured.
log = logging.getLogger("primus.engine.elastic")

_MONITOR_INTERVAL_S = 0.1
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: Sequence[str], worker: Sequence[str] = ("-m", "primus.engine.worker")) -> int:
    """Run the workers and return the exit code; `worker` is what Python runs on each rank, with CONFIG behind it."""
    options = _parse(arguments)
    logs.configure(console_level="INFO")
    with tempfile.TemporaryDirectory(prefix="primus-elastic-") as causes:
        return _run(options, Path(causes), worker)


def _run(options: argparse.Namespace, causes: Path, worker: Sequence[str]) -> int:
    # The agent would otherwise answer SIGTERM and SIGINT itself and kill the workers 30 seconds later.
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    name_launcher()
    with signals_held(*_FORWARDED):
        agent = _agent(options, causes, worker)
        forward = _Forwarder(agent)
        for number in _FORWARDED:
            signal.signal(number, forward)
    # What the agent says about a failure is said better below.
    logging.disable(logging.CRITICAL)
    try:
        result = agent.run()
    finally:
        logging.disable(logging.NOTSET)
    if not result.is_failed():
        return EXIT_DONE
    return forward.exit_code or _report(result.failures, where="" if options.nnodes == 1 else " on this node")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="primus.engine.elastic")
    parser.add_argument("config")
    parser.add_argument("--nproc-per-node", type=int, required=True)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, help="with a static endpoint: this node's number")
    parser.add_argument("--endpoint", help="HOST:PORT where the nodes meet; not needed for one node")
    return parser.parse_args(arguments)


def _agent(options: argparse.Namespace, causes: Path, worker: Sequence[str]) -> "LocalElasticAgent":
    """Return the agent of this node; nodes meet at a static endpoint if they are numbered, else through c10d."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import registry as rendezvous_registry

    is_alone = options.endpoint is None
    is_static = options.node_rank is not None and not is_alone
    parameters: dict[str, Any] = {"rank": options.node_rank, "timeout": 900} if is_static else {"timeout": 900}
    local_address = "localhost" if is_alone else None
    endpoint = "localhost:0" if is_alone else options.endpoint
    rendezvous = rendezvous_registry.get_rendezvous_handler(
        RendezvousParameters(
            backend="static" if is_static else "c10d",
            endpoint=endpoint,
            run_id="primus",
            min_nodes=options.nnodes,
            max_nodes=options.nnodes,
            local_addr=local_address,
            **parameters,
        )
    )
    host, _, port = endpoint.rpartition(":")
    spec = WorkerSpec(
        role="worker",
        local_world_size=options.nproc_per_node,
        entrypoint=sys.executable,
        args=(*worker, options.config),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=_MONITOR_INTERVAL_S,
        master_addr=host if is_static else None,
        master_port=int(port) if is_static else None,
        local_addr=local_address,
    )
    return LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(log_dir=str(causes)))


class _Forwarder:
    """Signal handler that passes the first signal on to the workers and kills them at the second."""

    def __init__(self, agent: "LocalElasticAgent") -> None:
        self._agent = agent
        self.exit_code = 0
        """128 + signal once there was one: the code to leave with unless the workers end well."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        pids = [worker.id for worker in self._agent.get_worker_group().workers if isinstance(worker.id, int)]
        is_first = self.exit_code == 0
        self.exit_code = 128 + number
        if not pids:
            raise SystemExit(self.exit_code)
        for pid in pids:
            try:
                # A worker answers SIGTERM by saving; Ctrl-C means the same.
                os.kill(pid, signal.SIGTERM if is_first else signal.SIGKILL)
            except ProcessLookupError:
                continue


def _report(failures: dict[int, "ProcessFailure"], *, where: str) -> int:
    """Say which rank failed first and why; return its exit code."""
    causes = {rank: read_cause(Path(failure.error_file)) for rank, failure in failures.items()}
    first = min(failures, key=lambda rank: _order(failures[rank], causes[rank]))
    cause, code = causes[first], failures[first].exitcode
    if cause is not None:
        see = f"\nIts log: {cause.log}" if cause.log else ""
        log.error("rank %d failed first%s:\n%s%s", first, where, cause.message, see)
    elif code < 0:
        name = failures[first].signal_name()
        hint = " The system kills processes this way when memory runs out." if name == "SIGKILL" else ""
        log.error("rank %d failed first%s: it was killed by %s.%s", first, where, name, hint)
    else:
        log.error("rank %d failed first%s: it left with code %d; see its output above.", first, where, code)
    return code if code in (EXIT_INPUT, EXIT_RUN) else EXIT_RUN


def _order(failure: "ProcessFailure", cause: Cause | None) -> tuple[int, float]:
    """Sort key, first cause first: killed from outside, by the time noted, the rest, and those that the agent ended."""
    if cause is not None:
        return 1, cause.time
    if failure.exitcode == -signal.SIGTERM:
        return 3, 0.0
    return (0, 0.0) if failure.exitcode < 0 else (2, 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
