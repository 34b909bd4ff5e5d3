"""How a parameter is divided over a group, declared once; initialisation, checkpoint, norms and export read it.

`Sharding` is the declaration, `Shards` what a rank holds of a global tensor: rectangles with their global offsets. The
rectangles of all ranks cover every element of the global tensor once for each replica.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from primus.engine.parallel.mesh import Group, Part

__all__ = [
    "Chunk",
    "Division",
    "Sharding",
    "Shards",
    "buffer_shards",
    "flat_range_shards",
    "global_parameters",
    "global_shape",
    "join",
    "local_shape",
    "parameter_shards",
    "sharding_of",
    "slice_global",
    "trainable_names",
    "weight_shards",
]


class Division(Protocol):
    """How this rank shares parameters with others: a `Mesh` says it."""

    @property
    def tp(self) -> Part | Group:
        """Matrices."""

    @property
    def ep(self) -> Part:
        """Experts."""

    @property
    def etp(self) -> Part:
        """Matrices of experts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """Division of one parameter."""

    dim: int | None
    """Divided dim; None: every rank holds all of it."""
    blocks: int | tuple[int, ...] = 1
    """Blocks along `dim`, each divided over the group: 2 equal ones for the gate and linear half of a gated MLP, or sizes."""
    is_expert: bool = False
    """Dim 0 counts experts, which ranks divide as well; `dim` is divided over fewer ranks, those that share an expert."""
    sequence_parallel_grad: bool = False
    """Replicated, but each rank's gradient covers its slice of the sequence only: the gradients are summed over the group."""
    is_embedding_or_output: bool = False
    """Word embedding or output layer: may have a learning rate of its own."""
    tied_to: str | None = None
    """Global name of a weight that the first and the last pipeline stage hold each, and whose gradients they sum."""
    is_copy: bool = False
    """Of a tied weight: the other stage's counts."""
    valid_rows: int | None = None
    """Rows of the global tensor that mean something; what follows is padding that depends on the layout and is not stored."""


_WHOLE = Sharding(dim=None)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One rectangle of a global tensor."""

    offsets: tuple[int, ...]
    """Where it starts, in the global tensor."""
    data: Tensor
    """Its values, as a view of the memory they live in."""


@dataclass(frozen=True, slots=True)
class Shards:
    """This rank's part of a global tensor."""

    global_shape: tuple[int, ...]
    """Without padding rows."""
    dtype: torch.dtype
    chunks: list[Chunk]


def global_parameters(chunks: Iterable[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a rank's model chunks, each once, under the names that they have in the whole model."""
    seen: set[nn.Parameter] = set()
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter not in seen:
                seen.add(parameter)
                yield sharding_of(parameter).tied_to or name, parameter


def trainable_names(chunks: Iterable[nn.Module]) -> frozenset[str]:
    """Return the global names of a rank's parameters that are not frozen."""
    return frozenset(name for name, parameter in global_parameters(chunks) if parameter.requires_grad)


def sharding_of(parameter: nn.Parameter) -> Sharding:
    """Return the sharding that a parameter was declared with; one without a declaration is whole on every rank."""
    sharding: Sharding = getattr(parameter, "sharding", _WHOLE)
    return sharding


def local_shape(shape: Sequence[int], sharding: Sharding, division: Division) -> tuple[int, ...]:
    """Return the shape that a rank holds of a tensor of global `shape`."""
    local = list(shape)
    for axis in _axes(sharding, division):
        lengths = axis.lengths(local[axis.dim])
        fits = sum(lengths) == local[axis.dim] and not any(length % axis.part.size for length in lengths)
        assert fits, f"dim {axis.dim} of {tuple(shape)} is not divisible: blocks {lengths}, {axis.part.size} ranks"
        local[axis.dim] //= axis.part.size
    return tuple(local)


def global_shape(local: Sequence[int], sharding: Sharding, division: Division) -> tuple[int, ...]:
    """Return the global shape, padding rows left out."""
    whole = list(local)
    for axis in _axes(sharding, division):
        whole[axis.dim] *= axis.part.size
    if sharding.valid_rows is not None:
        whole[0] = sharding.valid_rows
    return tuple(whole)


def slice_global(full: Tensor, sharding: Sharding, division: Division) -> Tensor:
    """Return this rank's part of a whole tensor (padding rows included), as new memory if `dim` is divided."""
    for axis in _axes(sharding, division):
        dim, _, part = axis
        if part.size > 1:
            blocks = full.split(axis.lengths(full.shape[dim]), dim)
            parts = [block.chunk(part.size, dim)[part.index] for block in blocks]
            full = parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
    return full


def parameter_shards(data: Tensor, sharding: Sharding, division: Division) -> Shards:
    """Return the rectangles of a rank's whole local tensor."""
    full = tuple((0, size) for size in data.shape)
    chunks = list(_place(data, full, data.shape, sharding, division))
    return Shards(global_shape(data.shape, sharding, division), data.dtype, chunks)


def weight_shards(parameters: Iterable[tuple[str, nn.Parameter]], division: Division) -> dict[str, Shards]:
    """Return the rectangles of named parameters that a rank holds whole as far as `division` does not divide them."""
    return {name: parameter_shards(parameter.data, sharding_of(parameter), division) for name, parameter in parameters}


def buffer_shards(chunks: Iterable[nn.Module]) -> dict[str, Shards]:
    """Return the tensors beside the parameters that belong to a model's state; all ranks of a stage hold them whole."""
    whole = ((name, module, key) for chunk in chunks for name, module in chunk.named_modules() for key in module._buffers)
    shards = {}
    for name, module, key in whole:
        buffer = module._buffers[key]
        if buffer is not None and key not in module._non_persistent_buffers_set:
            chunk = Chunk((0,) * buffer.dim(), buffer)
            shards[f"{name}.{key}"] = Shards(tuple(buffer.shape), buffer.dtype, [chunk])
    return shards


def join(known: Shards | None, part: Shards) -> Shards:
    """Add rectangles to those that are known: a tensor that straddles two flat ranges has pieces in both."""
    return part if known is None else Shards(part.global_shape, part.dtype, [*known.chunks, *part.chunks])


def flat_range_shards(flat: Tensor, start: int, shape: Sequence[int], sharding: Sharding, division: Division) -> Shards:
    """Return the rectangles of a flat piece of a local tensor of `shape` whose first element is `start`.

    A range that begins or ends within a row has a rectangle for its first and last row and one for the rows between.
    """
    chunks: list[Chunk] = []
    for position, rectangle in _rectangles(start, start + flat.numel(), tuple(shape)):
        size = math.prod(b - a for a, b in rectangle)
        data = flat[position - start : position - start + size].view([b - a for a, b in rectangle])
        chunks += _place(data, rectangle, shape, sharding, division)
    return Shards(global_shape(shape, sharding, division), flat.dtype, chunks)


Rectangle = tuple[tuple[int, int], ...]
"""Half-open bounds of each dim."""


def _rectangles(start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[int, Rectangle]]:
    """Cut the flat range [start, stop) into rectangles; yields each with its first flat element."""
    if start >= stop:
        return
    if len(shape) <= 1:
        yield start, ((start, stop),) if shape else ()
        return
    inner = math.prod(shape[1:])
    first, last = start // inner, (stop - 1) // inner
    whole_first, whole_stop = -(-start // inner), stop // inner
    if first == last and (start % inner or stop % inner):
        yield from _in_row(first, start, stop, shape)
        return
    if start % inner:
        yield from _in_row(first, start, (first + 1) * inner, shape)
    if whole_first < whole_stop:
        yield whole_first * inner, ((whole_first, whole_stop), *((0, size) for size in shape[1:]))
    if stop % inner:
        yield from _in_row(last, last * inner, stop, shape)


def _in_row(row: int, start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[int, Rectangle]]:
    base = row * math.prod(shape[1:])
    for position, rectangle in _rectangles(start - base, stop - base, shape[1:]):
        yield base + position, ((row, row + 1), *rectangle)


class _Axis(NamedTuple):
    """A divided dim: each of its blocks is cut into equal parts."""

    dim: int
    blocks: int | tuple[int, ...]
    part: Part | Group

    def lengths(self, size: int) -> list[int]:
        """Return the lengths of the blocks in a whole dim of this size, or in a rank's part of it."""
        if isinstance(self.blocks, int):
            return [size // self.blocks] * self.blocks
        return [block * size // sum(self.blocks) for block in self.blocks]


def _axes(sharding: Sharding, division: Division) -> list[_Axis]:
    axes = [_Axis(0, 1, division.ep)] if sharding.is_expert else []
    if sharding.dim is not None:
        axes.append(_Axis(sharding.dim, sharding.blocks, division.etp if sharding.is_expert else division.tp))
    return axes


def _place(data: Tensor, local: Rectangle, shape: Sequence[int], sharding: Sharding, division: Division) -> Iterator[Chunk]:
    """Give a local rectangle its global offsets: it is cut where blocks of a divided dim meet, and before padding."""
    for piece, offsets in _cut(data, local, shape, _axes(sharding, division)):
        yield from _without_padding(piece, offsets, sharding)


def _cut(data: Tensor, local: Rectangle, shape: Sequence[int], axes: Sequence[_Axis]) -> Iterator[tuple[Tensor, list[int]]]:
    if not axes:
        yield data, [a for a, _ in local]
        return
    axis, *others = axes
    dim, _, part = axis
    lower, upper = local[dim]
    first = 0
    for length in axis.lengths(shape[dim]):
        start, end = max(lower, first), min(upper, first + length)
        if start < end:
            piece = data.narrow(dim, start - lower, end - start)
            for smaller, offsets in _cut(piece, (*local[:dim], (start, end), *local[dim + 1 :]), shape, others):
                offsets[dim] = first * part.size + part.index * length + start - first
                yield smaller, offsets
        first += length


def _without_padding(data: Tensor, offsets: list[int], sharding: Sharding) -> Iterator[Chunk]:
    if sharding.valid_rows is not None:
        rows = min(data.shape[0], sharding.valid_rows - offsets[0])
        if rows <= 0:
            return
        data = data[:rows]
    yield Chunk(tuple(offsets), data)
