"""Tokens a second of two data-parallel processes with one thread each beside one process with two, at one global batch.

Prints one JSON line a job with the ratio's median over alternating pairs (goal on M: 0.9). Both sides are the command that a
user types; one process takes the global batch in two microbatches.
"""

import argparse
import json
import tempfile
from pathlib import Path

from jobs import JOBS, experiment, run_primus, spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="M")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.jobs.split(","):
        print(json.dumps(compare(name, arguments.pairs, arguments.iterations)), flush=True)


def compare(name: str, pairs: int, iterations: int) -> dict[str, object]:
    """Time both layouts `pairs` times in turn."""
    job = JOBS[name]
    batch = 2 * job.micro_batch_size
    one, two = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = experiment(job, Path(folder), iterations=iterations, global_batch_size=batch)
        for _ in range(pairs):
            one.append(run_primus(file, processes=1, threads=2, warmup=1))
            two.append(run_primus(file, processes=2, threads=1, warmup=1))
    tokens = batch * job.seq_length
    return {
        "what": "data parallel, two processes with one thread beside one process with two",
        "job": name,
        "one_tokens_s": [round(tokens / ms * 1e3) for ms in one],
        "two_tokens_s": [round(tokens / ms * 1e3) for ms in two],
        **spread([a / b for a, b in zip(one, two, strict=True)]),
    }


if __name__ == "__main__":
    main()
