"""How a parameter is divided over a group, declared once; initialisation, checkpoint, norms and export read it.

`Sharding` is the declaration, `Shards` what a rank holds of a global tensor: rectangles with their global offsets. The
rectangles of all ranks cover every element of the global tensor once for each replica.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from primus.engine.parallel.mesh import Group

__all__ = [
    "Chunk",
    "Sharding",
    "Shards",
    "flat_range_shards",
    "global_parameters",
    "global_shape",
    "join",
    "local_shape",
    "parameter_shards",
    "sharding_of",
    "slice_global",
    "weight_shards",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharding:
    """Division of one parameter."""

    dim: int | None
    """Divided dim; None: every rank holds all of it."""
    blocks: int = 1
    """Equal blocks along `dim`, each divided over the group: 2 for the gate and linear half of a gated MLP."""
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


def sharding_of(parameter: nn.Parameter) -> Sharding:
    """Return the sharding that a parameter was declared with; one without a declaration is whole on every rank."""
    sharding: Sharding = getattr(parameter, "sharding", _WHOLE)
    return sharding


def local_shape(shape: Sequence[int], sharding: Sharding, group: Group) -> tuple[int, ...]:
    """Return the shape that a rank of the group holds of a tensor of global `shape`."""
    if sharding.dim is None:
        return tuple(shape)
    unit = sharding.blocks * group.size
    size = shape[sharding.dim]
    assert size % unit == 0, f"dim {sharding.dim} of {tuple(shape)} is not divisible by {unit}"
    return (*shape[: sharding.dim], size // group.size, *shape[sharding.dim + 1 :])


def global_shape(local: Sequence[int], sharding: Sharding, group: Group) -> tuple[int, ...]:
    """Return the global shape, padding rows left out."""
    whole = list(local)
    if sharding.dim is not None:
        whole[sharding.dim] *= group.size
    if sharding.valid_rows is not None:
        whole[0] = sharding.valid_rows
    return tuple(whole)


def slice_global(full: Tensor, sharding: Sharding, group: Group) -> Tensor:
    """Return this rank's part of a whole tensor (padding rows included), as new memory if it is divided."""
    if sharding.dim is None or group.size == 1:
        return full
    parts = [block.chunk(group.size, sharding.dim)[group.index] for block in full.chunk(sharding.blocks, sharding.dim)]
    return torch.cat(parts, dim=sharding.dim)


def parameter_shards(data: Tensor, sharding: Sharding, group: Group) -> Shards:
    """Return the rectangles of a rank's whole local tensor."""
    full = tuple((0, size) for size in data.shape)
    return Shards(global_shape(data.shape, sharding, group), data.dtype, list(_place(data, full, data.shape, sharding, group)))


def weight_shards(parameters: Iterable[tuple[str, nn.Parameter]], group: Group) -> dict[str, Shards]:
    """Return the rectangles of named parameters that a rank holds whole as far as `group` does not divide them."""
    return {name: parameter_shards(parameter.data, sharding_of(parameter), group) for name, parameter in parameters}


def join(known: Shards | None, part: Shards) -> Shards:
    """Add rectangles to those that are known: a tensor that straddles two flat ranges has pieces in both."""
    return part if known is None else Shards(part.global_shape, part.dtype, [*known.chunks, *part.chunks])


def flat_range_shards(flat: Tensor, start: int, shape: Sequence[int], sharding: Sharding, group: Group) -> Shards:
    """Return the rectangles of a flat piece of a local tensor of `shape` whose first element is `start`.

    A range that begins or ends within a row has a rectangle for its first and last row and one for the rows between.
    """
    chunks: list[Chunk] = []
    for position, rectangle in _rectangles(start, start + flat.numel(), tuple(shape)):
        size = math.prod(b - a for a, b in rectangle)
        data = flat[position - start : position - start + size].view([b - a for a, b in rectangle])
        chunks += _place(data, rectangle, shape, sharding, group)
    return Shards(global_shape(shape, sharding, group), flat.dtype, chunks)


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


def _place(data: Tensor, local: Rectangle, shape: Sequence[int], sharding: Sharding, group: Group) -> Iterator[Chunk]:
    """Give a local rectangle its global offsets: it is cut where blocks of the divided dim meet, and before padding."""
    if sharding.dim is None:
        yield from _without_padding(data, [a for a, _ in local], sharding)
        return
    dim, length = sharding.dim, shape[sharding.dim] // sharding.blocks
    start, stop = local[dim]
    while start < stop:
        block = start // length
        end = min(stop, (block + 1) * length)
        offsets = [a for a, _ in local]
        offsets[dim] = block * length * group.size + group.index * length + start - block * length
        yield from _without_padding(data.narrow(dim, start - local[dim][0], end - start), offsets, sharding)
        start = end


def _without_padding(data: Tensor, offsets: list[int], sharding: Sharding) -> Iterator[Chunk]:
    if sharding.valid_rows is not None:
        rows = min(data.shape[0], sharding.valid_rows - offsets[0])
        if rows <= 0:
            return
        data = data[:rows]
    yield Chunk(tuple(offsets), data)
