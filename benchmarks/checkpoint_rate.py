"""Rate of saving and loading job M's state (57.9 M fp32 weights and their Adam moments) beside torch's own two ways.

    python benchmarks/checkpoint_rate.py [--rounds 5] [--folder DIR]

Prints one JSON object. Each round times every way once, in turn; ratios are medians over rounds of (its time / ours), so
above 1 means that ours is faster. `cached`: the page cache takes the data, nobody calls fsync. `durable`: every way ends
with fsync, as a checkpoint is really saved; our durable time also has the renames, the tracker and the folders' fsync.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from primus.engine.checkpoint.load import load_checkpoint
from primus.engine.checkpoint.save import Contents, save_checkpoint
from primus.engine.checkpoint.start import find_start
from primus.engine.checkpoint.state import TrainState
from primus.engine.config import CheckpointConfig
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.sharding import Chunk, Shards

LAYERS, HIDDEN, FFN, VOCAB, HEADS, GROUPS = 8, 512, 1536, 32000, 8, 4
QKV = HIDDEN + 2 * HIDDEN * GROUPS // HEADS
SHAPES = {
    "embedding.word_embeddings.weight": (VOCAB, HIDDEN),
    **{
        f"decoder.layers.{layer}.{name}": shape
        for layer in range(LAYERS)
        for name, shape in {
            "input_layernorm.weight": (HIDDEN,),
            "self_attention.linear_qkv.weight": (QKV, HIDDEN),
            "self_attention.linear_proj.weight": (HIDDEN, HIDDEN),
            "pre_mlp_layernorm.weight": (HIDDEN,),
            "mlp.linear_fc1.weight": (2 * FFN, HIDDEN),
            "mlp.linear_fc2.weight": (HIDDEN, FFN),
        }.items()
    },
    "decoder.final_layernorm.weight": (HIDDEN,),
    "output_layer.weight": (VOCAB, HIDDEN),
}


def flat_state() -> dict[str, Tensor]:
    """Return weights and moments as views of three flat buffers, as the engine keeps them."""
    state = {}
    for prefix in ("", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."):
        parts = torch.randn(sum(torch.Size(shape).numel() for shape in SHAPES.values())).split(
            [torch.Size(shape).numel() for shape in SHAPES.values()]
        )
        state |= {prefix + name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}
    return state


def shards(state: dict[str, Tensor], *, optimizer: bool) -> dict[str, Shards]:
    """Return the whole tensors as rectangles."""
    return {
        name: Shards(tuple(t.shape), t.dtype, [Chunk((0,) * t.dim(), t)])
        for name, t in state.items()
        if name.startswith("optimizer.") == optimizer
    }


def save_ours(folder: Path, state: dict[str, Tensor], ckpt_format: str) -> None:
    """Save through the product's own door."""
    contents = Contents(
        state=TrainState(iteration=1),
        model=shards(state, optimizer=False),
        optimizer=shards(state, optimizer=True),
        optimizer_common={},
        rng={},
        container={"model": {}},
    )
    save_checkpoint(_config(folder, ckpt_format), contents, mesh=single_mesh())


def load_ours(folder: Path, state: dict[str, Tensor], ckpt_format: str) -> None:
    """Load through the product's own door, checksums included."""
    config = _config(folder, ckpt_format)
    start = find_start(config)
    assert start is not None
    model, optimizer = shards(state, optimizer=False), shards(state, optimizer=True)
    load_checkpoint(start, config, model=model, optimizer=optimizer, container={"model": {}}, mesh=single_mesh())


def _config(folder: Path, ckpt_format: str) -> CheckpointConfig:
    return CheckpointConfig(save=str(folder), load=str(folder), ckpt_format=ckpt_format, no_save_rng=True)  # type: ignore[arg-type]


def save_torch(folder: Path, state: dict[str, Tensor]) -> None:
    """torch.save of the state, synced (unless fsync is switched off for the round)."""
    folder.mkdir()
    with (folder / "state.pt").open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())


def load_torch(folder: Path, state: dict[str, Tensor]) -> None:
    """torch.load, then a copy into the state, which the others do too."""
    for name, tensor in torch.load(folder / "state.pt", weights_only=True).items():
        state[name].copy_(tensor)


def save_dcp(folder: Path, state: dict[str, Tensor]) -> None:
    """torch.distributed.checkpoint with its defaults (one thread, fsync)."""
    dcp.save(dict(state), checkpoint_id=folder, no_dist=True)


def load_dcp(folder: Path, state: dict[str, Tensor]) -> None:
    """torch.distributed.checkpoint in place."""
    dcp.load(dict(state), checkpoint_id=folder, no_dist=True)


WAYS: dict[str, tuple[Callable[[Path, dict[str, Tensor]], None], Callable[[Path, dict[str, Tensor]], None]]] = {
    "primus torch_dist": (lambda f, s: save_ours(f, s, "torch_dist"), lambda f, s: load_ours(f, s, "torch_dist")),
    "primus torch": (lambda f, s: save_ours(f, s, "torch"), lambda f, s: load_ours(f, s, "torch")),
    "torch.distributed.checkpoint": (save_dcp, load_dcp),
    "torch.save": (save_torch, load_torch),
}


@contextmanager
def without_fsync() -> Iterator[None]:
    """Let every way skip its fsync."""
    with mock.patch("os.fsync"):
        yield


def time_once(base: Path, way: str, states: dict[str, dict[str, Tensor]], *, durable: bool) -> tuple[float, float]:
    """Return the seconds of one save into a new folder and of loading it again."""
    save, load = WAYS[way]
    folder = base / "checkpoint"
    state = states["views" if way.startswith("primus") else "tensors"]
    os.sync()  # the previous way's pages are not this one's cost
    begin = time.perf_counter()
    if durable:
        save(folder, state)
    else:
        with without_fsync():
            save(folder, state)
    saved = time.perf_counter()
    load(folder, state)
    loaded = time.perf_counter()
    shutil.rmtree(folder)
    return saved - begin, loaded - saved


def main() -> None:
    """Run the rounds and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; default: the temporary folder")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    views = flat_state()
    states = {"views": views, "tensors": {name: tensor.clone() for name, tensor in views.items()}}
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for _ in range(arguments.rounds):
            for durable in (False, True):
                for way in WAYS:
                    saved, loaded = time_once(Path(name), way, states, durable=durable)
                    kind = "save durable" if durable else "save cached"
                    times.setdefault(kind, {}).setdefault(way, []).append(saved)
                    if not durable:
                        times.setdefault("load", {}).setdefault(way, []).append(loaded)
    size = sum(tensor.nbytes for tensor in views.values())
    print(json.dumps(report(times, size), indent=1))


def report(times: dict[str, dict[str, list[float]]], num_bytes: int) -> dict[str, object]:
    """Return medians, rates and the ratios to the product's default format."""
    result: dict[str, object] = {
        "benchmark": "checkpoint_rate",
        "megabytes": round(num_bytes / 1e6, 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    for kind, ways in times.items():
        ours = ways["primus torch_dist"]
        result[kind] = {
            way: {
                "median_s": round(statistics.median(seconds), 3),
                "best_s": round(min(seconds), 3),
                "megabytes_per_s": round(num_bytes / 1e6 / statistics.median(seconds)),
                "times_ours": round(statistics.median(s / o for s, o in zip(seconds, ours, strict=True)), 2),
            }
            for way, seconds in ways.items()
        }
    cached, durable = (statistics.median(times[kind]["primus torch_dist"]) for kind in ("save cached", "save durable"))
    result["fsync_costs_s"] = round(durable - cached, 3)
    return result


if __name__ == "__main__":
    main()
