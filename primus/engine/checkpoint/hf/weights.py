"""`HFWeights`: the tensors of a folder under our names, as rectangles of global tensors.

So a rank of any layout fills what it holds, and reads nothing else; an import fills one tensor after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from primus.engine.checkpoint.hf.forms import runs, their_rows
from primus.engine.checkpoint.hf.names import Row, is_ignored, listed, row_of
from primus.engine.checkpoint.hf.read import model_in
from primus.engine.checkpoint.hf.shapes import global_shapes
from primus.engine.checkpoint.hf.source import DTYPES, HFFolder
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.model import ModelConfig
from primus.engine.config.serialize import to_dict
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Chunk, Shards
from primus.errors import InputError

__all__ = ["HFSource", "HFWeights", "scattered", "their_tensors"]

Shape = tuple[int, ...]


class HFWeights:
    """Weights of a family on disk, for a model of ours."""

    def __init__(self, folder: Path, family: str, model: ModelConfig, shapes: Mapping[str, Shape]) -> None:
        """`shapes` are those of all our tensors. InputError names all that is missing, left over, or of another shape."""
        self._family, self._model, self._shapes = family, model, shapes
        self._source = HFFolder(folder)
        wanted = {
            name: shape for ours, shape in shapes.items() for name, shape in their_tensors(family, ours, shape, model).items()
        }
        unused = [name for name in self._source.shapes if name not in wanted]
        self.not_used = tuple(name for name in unused if is_ignored(name, model))
        """Tensors that no part of ours is made of, and that need not be."""
        problems = _problems(folder, self._source, wanted, [name for name in unused if name not in self.not_used])
        if problems:
            raise InputError(problems)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype that holds the values of our tensor exactly."""
        parts = their_tensors(self._family, name, self._shapes[name], self._model)
        dtypes = [DTYPES[self._source.dtypes[part]] for part in parts]
        result = dtypes[0]
        for other in dtypes[1:]:
            result = torch.promote_types(result, other)
        return result

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill rectangles in place."""
        with torch.no_grad():
            for name, shards in tensors.items():
                row = _row(self._family, name, self._model)
                for chunk in shards.chunks:
                    for expert, data, offsets in _matrices(row, chunk.data, chunk.offsets):
                        self._fill(row, expert, data, offsets, shards.global_shape[-data.dim()])

    def _fill(self, row: Row, expert: int, data: Tensor, offsets: Shape, rows: int) -> None:
        first, *others = zip(offsets, data.shape, strict=True)
        columns = tuple(slice(start, start + size) for start, size in others)
        begin, end = first[0], first[0] + first[1]
        for run in runs(row.form, rows, self._model):
            low, high = max(run.ours, begin), min(run.ours + run.length, end)
            if low < high:
                part = self._read(row, run.part, expert, (run.their_slice(low, high), *columns))
                data[low - begin : high - begin].copy_(part)

    def _read(self, row: Row, part: int, expert: int, wanted: tuple[slice, ...]) -> Tensor:
        """Read a part of the matrix of an expert, or of the only one; files give neighbours, of which steps leave some out."""
        near = tuple(slice(each.start, each.stop) for each in wanted)
        near = near[::-1] if row.is_transposed else near
        if row.is_stack:
            near = (slice(expert, expert + 1), *near)
        value = self._source.read(row.theirs[part].format(e=expert), near)
        value = value[0] if row.is_stack else value
        value = value.t() if row.is_transposed else value
        return value[:: wanted[0].step or 1]


class HFSource:
    """A folder as a checkpoint of weights: any rank of any layout reads what it holds."""

    is_shared = True
    """Every rank sees the same tensors in it."""

    def __init__(self, folder: Path) -> None:
        """InputError as `HFWeights`, and for a `config.json` of no known model."""
        self.family, model = model_in(folder)
        self._shapes = global_shapes(model)
        self._weights = HFWeights(folder, self.family, model, self._shapes)
        self.not_used = self._weights.not_used
        """Tensors that are left aside."""
        self.common: Mapping[str, Any] = {
            "iteration": 0,
            "state": TrainState().to_dict(),
            "container": {"model": to_dict(model)},
            "optimizer_common": None,
            "has_rng": False,
        }

    def shapes(self) -> dict[str, Shape]:
        """Return those of the whole model, under our names."""
        return dict(self._shapes)

    def dtypes(self) -> dict[str, torch.dtype]:
        """Return those that hold the values exactly."""
        return {name: self._weights.dtype(name) for name in self._shapes}

    def load(self, tensors: Mapping[str, Shards]) -> None:
        """Fill rectangles in place, cast to their dtype."""
        self._weights.load(tensors)

    def rng(self, mesh: Mesh, data_rank: int) -> None:
        """A folder holds no random states."""


def their_tensors(family: str, name: str, shape: Shape, model: ModelConfig) -> dict[str, Shape]:
    """Return names and shapes of the tensors that one of ours is made of."""
    row = _row(family, name, model)
    matrix = shape[1:] if row.is_of_experts else shape
    rows = their_rows(row.form, matrix[0], model)
    shapes = [(count, *matrix[1:]) for count in rows]
    if row.is_transposed:
        shapes = [each[::-1] for each in shapes]
    if row.is_stack:
        return {theirs: (shape[0], *each) for theirs, each in zip(row.theirs, shapes, strict=True)}
    experts = range(shape[0]) if row.is_of_experts else range(1)
    return {theirs.format(e=number): each for number in experts for theirs, each in zip(row.theirs, shapes, strict=True)}


def scattered(family: str, name: str, shape: Shape, theirs: Mapping[str, Tensor], model: ModelConfig) -> Shards:
    """Return our tensor as rectangles that lie in theirs: loading it fills them."""
    row = _row(family, name, model)
    chunks = []
    for expert in range(shape[0]) if row.is_of_experts else (None,):
        before = () if expert is None else (expert,)
        rows, *others = shape[len(before) :]
        for run in runs(row.form, rows, model):
            whole = theirs[row.theirs[run.part].format(e=expert)]
            matrix = whole[expert] if row.is_stack else whole
            matrix = matrix.t() if row.is_transposed else matrix
            data = matrix[run.their_slice(run.ours, run.ours + run.length)]
            chunks.append(Chunk((*before, run.ours, *(0 for _ in others)), data if expert is None else data.unsqueeze(0)))
    return Shards(shape, next(iter(theirs.values())).dtype, chunks)


def _row(family: str, name: str, model: ModelConfig) -> Row:
    row = row_of(family, name, model)
    if row is None:
        raise InputError(f"no model of the family {family} has {name}")
    return row


def _matrices(row: Row, data: Tensor, offsets: Shape) -> Iterator[tuple[int, Tensor, Shape]]:
    """Yield the rectangle, or that of each expert in it, and the number of the expert."""
    if not row.is_of_experts:
        yield 0, data, offsets
        return
    for number, matrix in enumerate(data, offsets[0]):
        yield number, matrix, offsets[1:]


def _problems(folder: Path, source: HFFolder, wanted: Mapping[str, Shape], left: Sequence[str]) -> list[str]:
    missing = [name for name in wanted if name not in source.shapes]
    problems = [
        f"{folder}: {name} has shape {list(source.shapes[name])}, and config.json asks for {list(shape)}"
        for name, shape in wanted.items()
        if source.shapes.get(name, shape) != shape
    ]
    problems += [
        f"{folder}: {name} is of dtype {source.dtypes[name]}; weights of {', '.join(DTYPES)} are read, quantised ones are not"
        for name in wanted
        if source.dtypes.get(name, "F32") not in DTYPES
    ]
    if missing:
        problems.append(f"{folder}: tensors that config.json asks for are missing: {listed(missing)}")
    if left:
        problems.append(f"{folder}: tensors have no place in the model of config.json: {listed(left)}")
    return problems
