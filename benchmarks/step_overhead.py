"""Time of one iteration of the run's own loop beside the same mathematics in a bare loop, alternating in one process.

Prints one JSON line with the overhead's median in percent (goal on job S: under 3). The run's side is everything between two
iterations: data, step, schedule, checks, metrics, console. The bare side is the same model with autograd's gradients, torch's
clipping and fused AdamW on a batch that is in memory already.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from jobs import JOBS, experiment

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.core.experiment import load_experiment
from primus.engine.config import ConfigContainer
from primus.engine.config.batch import BatchPlan
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.host_memory import keep_freed_memory
from primus.engine.model.builder import build_model
from primus.engine.parallel.mesh import Mesh, single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.train.assemble import assemble
from primus.engine.train.feeds import Sources
from primus.engine.train.loop import Callback, Loop
from primus.engine.train.pretrain import build_loop, with_vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS, default="S")
    parser.add_argument("--iterations", type=int, default=40)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        pairs = measure(arguments.job, arguments.iterations, Path(folder))[3:]
    overhead = [100.0 * (run / bare - 1.0) for run, bare in pairs]
    row = {
        "what": "overhead of a step over the same mathematics in a bare loop",
        "job": arguments.job,
        "bare_ms": round(1e3 * statistics.median(bare for _, bare in pairs), 1),
        "run_ms": round(1e3 * statistics.median(run for run, _ in pairs), 1),
        "overhead_percent": round(statistics.median(overhead), 2),
        "quartiles": [round(value, 2) for value in statistics.quantiles(overhead, n=4)],
        "pairs": len(pairs),
    }
    print(json.dumps(row))


def measure(name: str, iterations: int, folder: Path) -> list[tuple[float, float]]:
    """Return the seconds of each iteration of the run and of the bare step before it."""
    job, mesh = JOBS[name], single_mesh()
    file = experiment(job, folder, iterations=iterations, global_batch_size=job.micro_batch_size)
    loaded = load_experiment(file, [], {})
    built = MegatronArgBuilder(loaded, loaded.modules["pre_trainer"], 1, folder / "run").build()
    tokenizer = build_tokenizer(built.config.tokenizer)
    config = with_vocabulary(built.config, tokenizer)
    plan = BatchPlan.of(config.train, mesh.layout.data)
    sources = Sources(config, tokenizer, mesh, plan)
    parts = assemble(config, mesh, None)
    loop = build_loop(parts, sources.feeds(parts.state), plan, time.time())
    turns = Turns(BareStep(config, mesh))
    loop.callbacks.insert(0, turns)
    loop.run()
    return turns.pairs


class BareStep:
    """The mathematics of a step and nothing else."""

    def __init__(self, config: ConfigContainer, mesh: Mesh) -> None:
        streams = RandomStreams(1, mesh.coordinates)
        (self.model,) = build_model(config.model, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optimizer.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        shape = (config.train.micro_batch_size, config.model.seq_length + 1)
        assert config.model.vocab_size is not None
        tokens = torch.randint(config.model.vocab_size, shape)
        self.tokens, self.labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.positions = torch.arange(shape[1] - 1).expand(shape[0], -1)
        self.mask = torch.ones_like(self.tokens, dtype=torch.float32)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        loss = self.model(self.tokens, self.positions, None, self.labels, self.mask) / self.mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        loss.item()


class Turns(Callback):
    """First listener of the loop: takes the time of the iteration that ended, then runs the bare step."""

    def __init__(self, bare: BareStep) -> None:
        self.pairs: list[tuple[float, float]] = []
        self._bare, self._bare_time, self._start = bare, 0.0, 0.0

    def before_step(self, loop: Loop) -> None:
        if loop.state.iteration:
            self.pairs.append((time.perf_counter() - self._start, self._bare_time))
        start = time.perf_counter()
        self._bare()
        self._start = time.perf_counter()
        self._bare_time = self._start - start


if __name__ == "__main__":
    main()
