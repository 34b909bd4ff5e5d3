"""Share of a sparse layer's time that is not its experts': router, sorting of tokens, sums. One process, job E's shape.

Prints one JSON line: times of forward and backward of the layer and of its experts alone on the same rows, alternating, and the
share of the rest (goal: under 10 %).
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from jobs import JOBS, experiment

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.core.experiment import load_experiment
from primus.engine.data.tokenizer import build_tokenizer
from primus.engine.host_memory import keep_freed_memory
from primus.engine.model.builder import build_model
from primus.engine.model.moe.layer import MoELayer
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.train.pretrain import with_vocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    pairs = parser.parse_args().pairs
    keep_freed_memory()
    torch.set_num_threads(2)
    layer, job = build(), JOBS["E"]
    x = torch.randn(job.seq_length, job.micro_batch_size, job.hidden, requires_grad=True)
    rows = layer._dispatch(x.flatten(0, 1), *layer.router(x)).arrive()
    given = rows.x.detach().requires_grad_(), rows.weights.detach().requires_grad_()
    whole, experts = [], []
    for _ in range(pairs + 3):
        whole.append(timed(lambda: layer(x)[0]))
        experts.append(timed(lambda: layer.experts(*given, rows.counts)))
    shares = [1.0 - part / all_ for part, all_ in zip(experts[3:], whole[3:], strict=True)]
    row = {
        "what": "router and exchange of tokens, share of a sparse layer",
        "layer_ms": round(1e3 * statistics.median(whole[3:]), 1),
        "experts_ms": round(1e3 * statistics.median(experts[3:]), 1),
        "share_percent": round(100 * statistics.median(shares), 1),
        "quartiles": [round(100 * share, 1) for share in statistics.quantiles(shares, n=4)],
    }
    print(json.dumps(row))


def build() -> MoELayer:
    """Return the first layer's sparse half of job E."""
    with TemporaryDirectory() as folder:
        file = experiment(JOBS["E"], Path(folder), iterations=1, global_batch_size=JOBS["E"].micro_batch_size)
        loaded = load_experiment(file, [], {})
        config = MegatronArgBuilder(loaded, loaded.modules["pre_trainer"], 1, Path(folder) / "run").build().config
    config, mesh = with_vocabulary(config, build_tokenizer(config.tokenizer)), single_mesh()
    streams = RandomStreams(1, mesh.coordinates)
    (model,) = build_model(config.model, mesh=mesh, dtype=torch.float32, device="cpu", seed=1, streams=streams)
    layer = dict(model.decoder.numbered())[0].mlp
    assert isinstance(layer, MoELayer)
    return layer


def timed(forward: Callable[[], torch.Tensor]) -> float:
    """Return the seconds of a forward and a backward."""
    start = time.perf_counter()
    forward().sum().backward()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
