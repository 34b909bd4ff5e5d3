"""Tokens a second of each kind of parallelism over 2 or 4 processes with one thread each, beside one process with two threads.

Prints one JSON line a layout with the ratio's median over alternating pairs; every side trains the same global batch by the
command that a user types. Pipelines have m microbatches: m/(m+p-1) of a step is work for 1F1B over p ranks. Layouts whose
name begins with `overlap` are timed beside the same ranks without it: above 1 the overlap gains.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jobs import JOBS, experiment, run_primus, spread

PIPELINE = "pipeline_model_parallel_size={n}"
FSDP = "use_megatron_fsdp=true"
AHEAD = ["overlap_grad_reduce=true", "overlap_param_gather=true"]
LAYOUTS: dict[str, list[str]] = {
    "data": [],
    "data, overlapped": AHEAD,
    "data, sharded gradients": [FSDP, "data_parallel_sharding_strategy=optim_grads", *AHEAD],
    "data, sharded weights": [FSDP, "data_parallel_sharding_strategy=optim_grads_params"],
    "data, sharded weights, overlapped": [FSDP, "data_parallel_sharding_strategy=optim_grads_params", *AHEAD],
    "tensor": ["tensor_model_parallel_size={n}", "sequence_parallel=false"],
    "tensor and sequence": ["tensor_model_parallel_size={n}"],
    "context, ring": ["context_parallel_size={n}"],
    "context, gathered": ["context_parallel_size={n}", "cp_comm_type=allgather"],
    "context, exchanged": ["context_parallel_size={n}", "cp_comm_type=a2a"],
    "pipeline, 1f1b": [PIPELINE],
    "pipeline, 1f1b without messages under way": [PIPELINE, "overlap_p2p_comm=false"],
    "pipeline, interleaved": [PIPELINE, "num_virtual_stages_per_pipeline_rank=2"],
    "pipeline, zero-bubble": [PIPELINE, "patch_primus_pipeline=true", "pp_algorithm=zero-bubble"],
    "pipeline, zbv-formatted": [PIPELINE, "patch_primus_pipeline=true", "pp_algorithm=zbv-formatted"],
}

"""`n` is the number of processes."""
OVERLAPPED = ["tp_comm_overlap=true"]
OVERLAPS: dict[str, tuple[int, list[str]]] = {
    f"overlap of {name}, tensor {ranks}": (ranks, words)
    for ranks in (2, 4)
    for name, words in {
        "all": OVERLAPPED,
        "all, input gradients in pieces": [*OVERLAPPED, "tp_comm_overlap_rs_dgrad=true"],
        "gathers": [*OVERLAPPED, "tp_comm_overlap_rs=false"],
        "scatters": [*OVERLAPPED, "tp_comm_overlap_ag=false"],
    }.items()
}
"""Ranks, and what switches the overlap on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", choices=JOBS, default="S")
    parser.add_argument("--layouts", nargs="*", default=[""], help="names, or beginnings of names; all by default")
    parser.add_argument("--processes", type=int, choices=(2, 4), default=2, help="of the layouts that are no overlaps")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--microbatches", type=int, default=8)
    arguments = parser.parse_args()
    wanted = tuple(arguments.layouts)
    for name, sides in _sides(arguments.processes).items():
        if name.startswith(wanted):
            print(json.dumps(compare(arguments.job, name, sides, arguments.pairs, arguments.microbatches)), flush=True)


@dataclass(frozen=True, slots=True)
class Side:
    """One way to run a job."""

    name: str
    processes: int
    threads: int
    words: list[str]


def _sides(n: int) -> dict[str, tuple[Side, Side]]:
    one = Side("one", 1, 2, [])
    layouts = {name: (one, Side("many", n, 1, [word.format(n=n) for word in words])) for name, words in LAYOUTS.items()}
    overlaps = {
        name: tuple(
            Side(side, ranks, 1, [f"tensor_model_parallel_size={ranks}", *w])
            for side, w in (("plain", []), ("overlapped", words))
        )
        for name, (ranks, words) in OVERLAPS.items()
    }
    return {**layouts, **overlaps}


def compare(job_name: str, layout: str, sides: tuple[Side, Side], pairs: int, microbatches: int) -> dict[str, object]:
    """Time both sides `pairs` times in turn; the ratio is the second one's speed over the first one's."""
    job = JOBS[job_name]
    batch = microbatches * job.micro_batch_size
    times: dict[str, list[float]] = {side.name: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        file = experiment(job, Path(folder), iterations=4, global_batch_size=batch)
        for _ in range(pairs):
            for side in sides:
                ms = run_primus(file, processes=side.processes, threads=side.threads, warmup=1, words=side.words)
                times[side.name].append(ms)
    tokens = batch * job.seq_length
    return {
        "what": " beside ".join(f"{s.name} ({s.processes} process(es), {s.threads} thread(s) each)" for s in reversed(sides)),
        "job": job_name,
        "layout": layout,
        **{f"{name}_tokens_s": [round(tokens / ms * 1e3) for ms in each] for name, each in times.items()},
        **spread([first / second for first, second in zip(*times.values(), strict=True)]),
    }


if __name__ == "__main__":
    main()
