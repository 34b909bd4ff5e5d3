"""Tokens a second of each kind of parallelism over two processes with one thread each, beside one process with two threads.

Prints one JSON line a layout with the ratio's median over alternating pairs; every side trains the same global batch by the
command that a user types. Pipelines have m microbatches: (m)/(m+1) of a step is work for 1F1B over two ranks.
"""

import argparse
import json
import tempfile
from pathlib import Path

from jobs import JOBS, experiment, run_primus, spread

PIPELINE = "pipeline_model_parallel_size=2"
LAYOUTS: dict[str, list[str]] = {
    "data": [],
    "data, overlapped": ["overlap_grad_reduce=true", "overlap_param_gather=true"],
    "tensor": ["tensor_model_parallel_size=2", "sequence_parallel=false"],
    "tensor and sequence": ["tensor_model_parallel_size=2"],
    "context, ring": ["context_parallel_size=2"],
    "context, gathered": ["context_parallel_size=2", "cp_comm_type=allgather"],
    "context, exchanged": ["context_parallel_size=2", "cp_comm_type=a2a"],
    "pipeline, 1f1b": [PIPELINE],
    "pipeline, 1f1b without messages under way": [PIPELINE, "overlap_p2p_comm=false"],
    "pipeline, interleaved": [PIPELINE, "num_virtual_stages_per_pipeline_rank=2"],
    "pipeline, zero-bubble": [PIPELINE, "patch_primus_pipeline=true", "pp_algorithm=zero-bubble"],
    "pipeline, zbv-formatted": [PIPELINE, "patch_primus_pipeline=true", "pp_algorithm=zbv-formatted"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS, default="S")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="names, or beginnings of names, separated by commas")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=8)
    arguments = parser.parse_args()
    wanted = tuple(arguments.layouts.split(","))
    for name, words in LAYOUTS.items():
        if name.startswith(wanted):
            print(json.dumps(compare(arguments.job, name, words, arguments.pairs, arguments.microbatches)), flush=True)


def compare(job_name: str, layout: str, words: list[str], pairs: int, microbatches: int) -> dict[str, object]:
    """Time one process and the layout `pairs` times in turn."""
    job = JOBS[job_name]
    batch = microbatches * job.micro_batch_size
    one, two = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = experiment(job, Path(folder), iterations=4, global_batch_size=batch)
        for _ in range(pairs):
            one.append(run_primus(file, processes=1, threads=2, warmup=1))
            two.append(run_primus(file, processes=2, threads=1, warmup=1, words=words))
    tokens = batch * job.seq_length
    return {
        "what": "two processes with one thread beside one process with two",
        "job": job_name,
        "layout": layout,
        "one_tokens_s": [round(tokens / ms * 1e3) for ms in one],
        "two_tokens_s": [round(tokens / ms * 1e3) for ms in two],
        **spread([a / b for a, b in zip(one, two, strict=True)]),
    }


if __name__ == "__main__":
    main()
