"""Whole pretraining runs inside a test: an experiment's overrides through the front door, trained by forked ranks.

No process is started anew and torch is not imported again, so a run of the tiny model takes about a second.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from ranks import run_ranks
from tiny import TINY as KEYS

from primus.backends.megatron.argument_builder import MegatronArgBuilder
from primus.core.experiment import load_experiment
from primus.engine.config import ConfigContainer
from primus.engine.data.indexed import IndexedDatasetBuilder
from primus.engine.data.mock import MockCorpus
from primus.engine.train.pretrain import pretrain
from primus.engine.train.sinks import Report

__all__ = ["TINY", "build_container", "logged_rank", "train", "train_rank", "write_corpus"]

TINY: dict[str, Any] = {**KEYS, "override_opt_param_scheduler": False}
"""The dense experiment that most tests vary; null removes a key."""

_MODEL_PARALLEL = ("tensor_model", "context", "pipeline_model")

Change = Callable[[ConfigContainer], ConfigContainer]


def build_container(folder: Path, name: str, world_size: int, overrides: Mapping[str, Any]) -> ConfigContainer:
    """Return the container of the tiny experiment with overrides; `folder` is the workspace, `name` the experiment.

    Without a `micro_batch_size` among the overrides, ranks get few microbatches.
    """
    keys = {**TINY, **overrides}
    if "micro_batch_size" not in overrides:
        keys["micro_batch_size"] = _micro_batch_size(world_size, keys)
    experiment = {
        "work_group": "g",
        "user_name": "u",
        "exp_name": name,
        "workspace": str(folder),
        "modules": {
            "pre_trainer": {
                "framework": "megatron",
                "config": "pre_trainer.yaml",
                "model": "language_model.yaml",
                "overrides": keys,
            }
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(experiment))
    loaded = load_experiment(file, [], {})
    module = loaded.modules["pre_trainer"]
    return MegatronArgBuilder(loaded, module, world_size, folder / "g" / "u" / name).build().config


def _micro_batch_size(world_size: int, keys: Mapping[str, Any]) -> int:
    """Return the size with which gradients add up and pipelines fill twice, for a run takes as long as it has microbatches.

    It is 1 where the batch grows, and where a loss is made of each microbatch by itself.
    """
    if keys.get("rampup_batch_size") or keys.get("num_experts"):
        return 1
    tensor, context, stages = (keys.get(f"{kind}_parallel_size") or 1 for kind in _MODEL_PARALLEL)
    own = keys["global_batch_size"] // max(1, world_size // (tensor * context * stages))
    return max((size for size in range(1, own + 1) if own % size == 0 and own // size >= min(2 * stages, own)), default=1)


def train(
    folder: Path, name: str, overrides: Mapping[str, Any] | None = None, *, ranks: int = 1, change: Change = lambda c: c
) -> list[dict[str, Any]]:
    """Train and return the rows of `metrics.jsonl`; a second call under the same name goes on in the same run folder."""
    config = change(build_container(folder, name, ranks, overrides or {}))
    run_ranks(train_rank, ranks, config)
    metrics = Path(config.run.folder) / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def train_rank(_rank: int, config: ConfigContainer) -> None:
    """Train as one of `run_ranks`."""
    torch.manual_seed(99)  # whatever the process did before must not matter
    Report.close = lambda self, *, failed: None  # type: ignore[method-assign]  # pictures take longest
    MockCorpus.__init__.__kwdefaults__["num_documents"] = 300  # samples of 100,000 are shuffled longer than a run trains
    pretrain(config, process_start=time.time())


def logged_rank(rank: int, config: ConfigContainer) -> str:
    """Train as one of `run_ranks` and return what this rank logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("primus")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    train_rank(rank, config)
    return "\n".join(lines)


def write_corpus(
    prefix: Path, *, documents: int, vocab_size: int = 95, seed: int = 0, length: tuple[int, int] = (5, 60)
) -> Path:
    """Write an indexed corpus of random documents that end with the tiny experiment's end-of-document token."""
    random = np.random.default_rng(seed)
    with IndexedDatasetBuilder(prefix, np.dtype(np.uint16)) as builder:
        for _ in range(documents):
            tokens = random.integers(0, vocab_size, random.integers(*length))
            builder.add_document([*tokens.tolist(), vocab_size])
    return prefix
