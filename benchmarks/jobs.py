"""The jobs that the training benchmarks time, in fp32 on two threads; imported by them, does nothing alone."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["JOBS", "Job", "experiment", "run_primus", "spread"]


@dataclass(frozen=True, slots=True)
class Job:
    """A Llama-style model, or a Mixtral-style one, and its microbatch."""

    layers: int
    hidden: int
    heads: int
    groups: int
    ffn: int
    vocabulary: int
    seq_length: int
    micro_batch_size: int
    experts: int = 0
    """Of each layer, two of a token, as wide as `ffn`; 0: a dense model."""

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch."""
        return self.seq_length * self.micro_batch_size


JOBS = {
    "S": Job(layers=4, hidden=256, heads=8, groups=4, ffn=768, vocabulary=8192, seq_length=512, micro_batch_size=4),
    "M": Job(layers=8, hidden=512, heads=8, groups=4, ffn=1536, vocabulary=32000, seq_length=1024, micro_batch_size=2),
    "E": Job(layers=4, hidden=256, heads=8, groups=4, ffn=512, vocabulary=8192, seq_length=512, micro_batch_size=4, experts=8),
}


def experiment(job: Job, folder: Path, *, iterations: int, global_batch_size: int) -> Path:
    """Write the experiment file of a job that logs every iteration and saves nothing; return its path."""
    overrides: dict[str, Any] = {
        "num_layers": job.layers,
        "hidden_size": job.hidden,
        "num_attention_heads": job.heads,
        "group_query_attention": True,
        "num_query_groups": job.groups,
        "ffn_hidden_size": job.ffn,
        "vocab_size": job.vocabulary - 1,  # the null tokenizer's end-of-document id is the last one
        "seq_length": job.seq_length,
        "max_position_embeddings": job.seq_length,
        "micro_batch_size": job.micro_batch_size,
        "global_batch_size": global_batch_size,
        "train_iters": iterations,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "swiglu": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bf16": False,
        "lr": 3.0e-4,
        "min_lr": 3.0e-4,
        "lr_warmup_iters": 0,
        "lr_decay_style": "constant",
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "clip_grad": 1.0,
        "tokenizer_type": "NullTokenizer",
        "mock_data": True,
        "eval_iters": 0,
        "finetune": False,
        "save": None,
        "distributed_backend": "gloo",
        "log_interval": 1,
    }
    if job.experts:
        overrides |= {
            "num_experts": job.experts,
            "moe_ffn_hidden_size": job.ffn,
            "moe_router_topk": 2,
            "moe_grouped_gemm": True,
            "moe_router_load_balancing_type": "none",
        }
    role = {"framework": "megatron", "config": "pre_trainer.yaml", "model": "language_model.yaml", "overrides": overrides}
    names = {"work_group": "bench", "user_name": "bench", "exp_name": "job", "workspace": str(folder / "out")}
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump({**names, "modules": {"pre_trainer": role}}))
    return file


def run_primus(file: Path, *, processes: int, threads: int, warmup: int, words: Sequence[str] = ()) -> float:
    """Train by the command that a user types, with `words` behind it.

    Returns the median milliseconds of an iteration after `warmup` of them.
    """
    argv = [sys.executable, "-m", "primus.cli.main", "train", "pretrain", "--config", str(file)]
    argv += ["--nproc-per-node", str(processes)] if processes > 1 else []
    argv += words
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    (metrics,) = file.parent.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.unlink()
    return statistics.median(row["iteration_time_ms"] for row in rows[warmup:])


def spread(ratios: list[float]) -> dict[str, Any]:
    """Return the median of the ratios of pairs, and all of them."""
    return {"ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
