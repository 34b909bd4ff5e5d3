"""Tokens a second of `primus train pretrain` beside transformers' Llama or Mixtral in a bare loop, alternating in one run.

Prints one JSON line a job: the rates of every pair, the ratio's median (goals: 1.3 on S, 1.35 on M, 1.5 on E), and before each
pair the rate of a 1024-cubed product, by which a disturbed pair is known. The bare loop is zero_grad, forward, loss, backward,
clipping to norm 1 and AdamW, with no data loading, logging or saving.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from jobs import JOBS, Job, experiment, run_primus, spread

THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="S,M,E")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--bare", choices=JOBS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(json.dumps(bare(JOBS[arguments.bare], *amount(arguments.bare))))
        return
    for name in arguments.jobs.split(","):
        print(json.dumps(compare(name, arguments.pairs)), flush=True)


def amount(name: str) -> tuple[int, int]:
    """Return the iterations of a run and how many of them are warm-up."""
    return (6, 1) if name == "M" else (15, 3)


def compare(name: str, pairs: int) -> dict[str, object]:
    """Time both sides `pairs` times in turn."""
    job, (iterations, warmup) = JOBS[name], amount(name)
    ours, theirs, probes = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = experiment(job, Path(folder), iterations=iterations, global_batch_size=job.micro_batch_size)
        for _ in range(pairs):
            ours.append(job.tokens / run_primus(file, processes=1, threads=THREADS, warmup=warmup) * 1e3)
            row = child(name)
            theirs.append(job.tokens / row["ms"] * 1e3)
            probes.append(row["gflops"])
    return {
        "what": "training throughput",
        "job": name,
        "ours_tokens_s": [round(rate) for rate in ours],
        "transformers_tokens_s": [round(rate) for rate in theirs],
        "probe_gflops": probes,
        **spread([a / b for a, b in zip(ours, theirs, strict=True)]),
    }


def child(name: str) -> dict[str, float]:
    """Run the bare loop in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": str(THREADS)}
    argv = [sys.executable, __file__, "--bare", name]
    row: dict[str, float] = json.loads(subprocess.run(argv, env=environment, capture_output=True, check=True).stdout)
    return row


def bare(job: Job, iterations: int, warmup: int) -> dict[str, float]:
    """Train transformers' Llama; return the median milliseconds of a step and the machine's rate before it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

    gflops = probe()
    sizes: dict[str, Any] = {
        "vocab_size": job.vocabulary,
        "hidden_size": job.hidden,
        "intermediate_size": job.ffn,
        "num_hidden_layers": job.layers,
        "num_attention_heads": job.heads,
        "num_key_value_heads": job.groups,
        "max_position_embeddings": job.seq_length,
        "tie_word_embeddings": False,
        "attn_implementation": "sdpa",
        "use_cache": False,
    }
    torch.manual_seed(1)
    if job.experts:
        sparse = MixtralConfig(**sizes, num_local_experts=job.experts, num_experts_per_tok=2, sliding_window=None)
        model: torch.nn.Module = MixtralForCausalLM(sparse)
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.randint(job.vocabulary, (8, job.micro_batch_size, job.seq_length + 1))
    times = []
    for iteration in range(iterations):
        batch = tokens[iteration % 8]
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return {"ms": statistics.median(times[warmup:]) * 1e3, "gflops": gflops}


def probe() -> float:
    """Return the GFLOP/s of a 1024-cubed fp32 product right now."""
    import torch

    a, out = torch.randn(1024, 1024), torch.empty(1024, 1024)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(a, a, out=out)
        times.append(time.perf_counter() - start)
    return round(2 * 1024**3 / statistics.median(times) / 1e9, 1)


if __name__ == "__main__":
    main()
