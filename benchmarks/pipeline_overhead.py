"""What the schedule's runtime itself takes: operations of no work under each schedule, beside the operations of a real step.

Prints one JSON line a schedule with the runtime's share of a step of the job in percent (goal: under 2). The first of two ranks
runs its part of the table with messages that are there already, so that nothing waits; a real operation is a forward or a
backward of the job's layers that the rank would hold, on one thread.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from jobs import JOBS, experiment

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.core.experiment import load_experiment
from primus.engine.config import ConfigContainer
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.pipeline.runtime import execute
from primus.engine.pipeline.schedules import RankPlan, build_schedule, rank_plan

SCHEDULES = ("1f1b", "1f1b-interleaved", "zero-bubble", "zbv-formatted", "v-half")


class NoLinks:
    """Messages that are always there."""

    def __init__(self, message: torch.Tensor) -> None:
        self._message = message

    def begin(self, incoming: object) -> None:
        """Nothing arrives."""

    def take(self, message: object, source: int) -> torch.Tensor:
        """Return the message."""
        return self._message.detach()

    def give(self, x: torch.Tensor, target: int) -> None:
        """Send nothing."""

    def end(self) -> None:
        """Wait for nothing."""


class NoGradients:
    """Gradients that nobody gathers."""

    def no_sync(self) -> nullcontext[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def deferring(self, key: object) -> nullcontext[None]:
        """Return a context that does nothing."""
        return nullcontext()

    def compute_deferred(self, key: object) -> None:
        """Do nothing."""

    def compute_postponed(self) -> None:
        """Do nothing."""

    def release(self, chunk: int) -> None:
        """Do nothing."""

    def gather_ahead(self, chunk: int) -> None:
        """Do nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS, default="S")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    work = real_seconds(arguments.job)
    for algorithm in SCHEDULES:
        plan = rank_plan(build_schedule(algorithm, 2, arguments.microbatches), 0)
        idle = statistics.median(empty_seconds(plan) for _ in range(arguments.repeats))
        row = {
            "what": "share of the schedule's runtime in a step of one of two stages",
            "job": arguments.job,
            "schedule": algorithm,
            "microbatches": arguments.microbatches,
            "runtime_us_per_operation": round(1e6 * idle / len(plan.tasks), 1),
            "share_percent": round(100 * idle / (work * arguments.microbatches / 2), 3),
        }
        print(json.dumps(row), flush=True)


def empty_seconds(plan: RankPlan) -> float:
    """Return the time of a step whose operations do nothing but carry a graph of one node."""
    hidden, weight = torch.ones(1), torch.ones(1, requires_grad=True)
    return _timed(
        lambda: execute(
            plan,
            forward=lambda op, given: (weight if given is None else given) * 1.0,
            gradients=NoGradients(),
            links=NoLinks(hidden),  # type: ignore[arg-type]
        )
    )


def real_seconds(name: str) -> float:
    """Return the time of forward and backward of one microbatch through the whole model."""
    with tempfile.TemporaryDirectory() as folder:
        config = _container(name, Path(folder))
    mesh = single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config.model, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    size = JOBS[name].vocabulary, (config.train.micro_batch_size, config.model.seq_length)
    tokens = torch.randint(*size)
    positions = torch.arange(config.model.seq_length).expand_as(tokens)
    mask = torch.ones(tokens.shape)
    times = [_timed(lambda: model(tokens, positions, None, tokens, mask).backward()) for _ in range(5)]
    return statistics.median(times[1:])


def _container(name: str, folder: Path) -> ConfigContainer:
    job = JOBS[name]
    file = experiment(job, folder, iterations=1, global_batch_size=job.micro_batch_size)
    loaded = load_experiment(file, [], {})
    config = MegatronArgBuilder(loaded, loaded.modules["pre_trainer"], 1, folder / "run").build().config
    return replace(config, model=replace(config.model, vocab_size=job.vocabulary))


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
