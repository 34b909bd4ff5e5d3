"""`import_hf` and `export_hf`: between a folder of the transformers library and a checkpoint of ours.

Both go tensor by tensor, experts one by one on the way in, so that a model of any size passes through the memory of one
tensor. Values are copied bit by bit in their dtype.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from primus.engine.checkpoint import dist_format
from primus.engine.checkpoint.compare import difference, refusal
from primus.engine.checkpoint.dist_format import Piece, Stored
from primus.engine.checkpoint.dist_plan import Box
from primus.engine.checkpoint.folder import RELEASE, TRACKER, write_durably
from primus.engine.checkpoint.hf.describe import described
from primus.engine.checkpoint.hf.names import copies_of, listed, row_of
from primus.engine.checkpoint.hf.original import as_original, checkpoint_folder, copy_others, known_original
from primus.engine.checkpoint.hf.read import CONFIG, ORIGINAL, model_in
from primus.engine.checkpoint.hf.shapes import global_shapes
from primus.engine.checkpoint.hf.target import Planned, write_safetensors
from primus.engine.checkpoint.hf.weights import HFWeights, scattered, their_tensors
from primus.engine.checkpoint.load import open_checkpoint
from primus.engine.checkpoint.merged import with_base
from primus.engine.checkpoint.save import saved_layout, seal
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.model import ModelConfig
from primus.engine.config.serialize import from_dict, to_dict
from primus.engine.parallel.mesh import single_mesh
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

__all__ = ["export_hf", "import_hf"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

MAX_FILE_BYTES = 5_000_000_000


def import_hf(source: Path, out: Path) -> None:
    """Write the checkpoint of a model into the empty folder `out`; InputError if `source` does not hold what it says."""
    family, model = model_in(source)
    shapes = global_shapes(model)
    weights = HFWeights(source, family, model, shapes)
    if weights.not_used:
        log.warning("NOT imported, the model has no part for them: %s", listed(weights.not_used))
    folder = out / RELEASE
    folder.mkdir()
    stored = {name: Stored(shape, weights.dtype(name)) for name, shape in shapes.items()}
    records = dist_format.save_pieces(folder, stored, _pieces(family, weights, stored, model))
    common = {
        "iteration": 0,
        "state": TrainState().to_dict(),
        "container": {"model": to_dict(model)},
        "saved_layout": saved_layout(single_mesh()),
        "optimizer_common": None,
        "has_rng": False,
    }
    seal(folder, records, common)
    copy_others(source, out / ORIGINAL)
    write_durably(out / TRACKER, RELEASE.encode())


def export_hf(
    checkpoint: Path,
    out: Path,
    *,
    original: Path | None = None,
    base: Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> None:
    """Write weights, `config.json` and tokenizer of a checkpoint into the empty folder `out`; adapters are merged.

    `original` is the folder that the weights came from, whose other files go on; an imported checkpoint, and a run that takes
    its weights or its tokenizer from such a folder, know it. `base` is where the weights lie that adapters need, if they were
    moved. InputError if no known family is the model, or the checkpoint lacks weights.
    """
    folder = checkpoint_folder(checkpoint)
    source = open_checkpoint(folder, single_mesh(), None)
    container = source.common["container"]
    model: ModelConfig = from_dict(container["model"], ModelConfig, "model")
    if source.common.get("base") is not None:
        source = with_base(source, model, base)
    shapes, held = global_shapes(model), source.shapes()
    problems = refusal(folder, difference(shapes, held, with_optimizer=False), "raise_all")
    if problems:
        raise InputError(problems)
    dtypes = source.dtypes()
    dtype = str(dtypes["embedding.word_embeddings.weight"]).removeprefix("torch.")
    original = original or known_original(checkpoint, container)
    family, content = described(model, dtype) if original is None else as_original(original, model, dtype)
    plan = {
        theirs: Planned(shape, dtypes[name])
        for name, ours in shapes.items()
        for theirs, shape in _with_copies(name, their_tensors(family, name, ours, model), model)
    }

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, shape in shapes.items():
            theirs = {n: torch.empty(s, dtype=dtypes[name]) for n, s in their_tensors(family, name, shape, model).items()}
            source.load({name: scattered(family, name, shape, theirs, model)})
            yield from _with_copies(name, theirs, model)

    write_safetensors(out, plan, tensors(), max_file_bytes=max_file_bytes)
    write_durably(out / CONFIG, (json.dumps(content, indent=2) + "\n").encode())
    if original is not None:
        copy_others(original, out)


def _pieces(family: str, weights: HFWeights, stored: Mapping[str, Stored], model: ModelConfig) -> Iterator[Piece]:
    """Read one tensor after the other; a stack of experts one by one, so that a rank later reads those that it holds."""
    for name, tensor in stored.items():
        row, shape = row_of(family, name, model), tensor.global_shape
        is_stack = row is not None and row.is_of_experts
        for number in range(shape[0]) if is_stack else (0,):
            sizes = (1, *shape[1:]) if is_stack else shape
            box = Box((number, *(0 for _ in shape[1:])), sizes)
            data = torch.empty(sizes, dtype=tensor.dtype)
            weights.load({name: Shards(shape, tensor.dtype, [Chunk(box.offsets, data)])})
            yield Piece(name, box, data)


def _with_copies(name: str, theirs: Mapping[str, _T], model: ModelConfig) -> Iterator[tuple[str, _T]]:
    """Yield what stands for their tensors, and again for the copies of ours that prediction layers have."""
    yield from theirs.items()
    for copy in copies_of(name, model):
        yield copy, next(iter(theirs.values()))
