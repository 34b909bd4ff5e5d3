"""Who writes which rectangle, and which parts of the rectangles on disk a rank reads. No communication, no files.

A rank's holdings are the boxes of its rectangles. Boxes that several ranks hold are written by one of them, so together the
written boxes cover every tensor exactly once; a box that is wanted is the sum of its intersections with the written ones.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from primus.engine.parallel.sharding import Shards

__all__ = ["Box", "Held", "assign", "holdings", "overlap", "overlaps", "view"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a global tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Held:
    """The boxes a rank holds of one tensor."""

    global_shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[Box, ...]


Holdings = Mapping[str, Held]


def holdings(tensors: Mapping[str, Shards]) -> dict[str, Held]:
    """Return the boxes of a rank's rectangles, in their order."""
    return {
        name: Held(tuple(s.global_shape), s.dtype, tuple(Box(tuple(c.offsets), tuple(c.data.shape)) for c in s.chunks))
        for name, s in tensors.items()
    }


def assign(ranks: Sequence[Holdings], *, spread: bool) -> list[list[tuple[str, int]]]:
    """Return for each rank the (tensor, number of its box) that it writes.

    With `spread` boxes held by several ranks go to the rank that has the fewest bytes so far, the largest boxes first; else to
    the lowest one.
    """
    owners: dict[tuple[str, Box], list[tuple[int, int]]] = {}
    for rank, tensors in enumerate(ranks):
        for name, held in tensors.items():
            for number, box in enumerate(held.boxes):
                if box.numel:
                    owners.setdefault((name, box), []).append((rank, number))
    shapes = {name: held for tensors in ranks for name, held in tensors.items()}
    _check_cover(owners, shapes)
    duties: list[list[tuple[str, int]]] = [[] for _ in ranks]
    loads = [0] * len(ranks)
    sized = [(box.numel * shapes[name].dtype.itemsize, name, places) for (name, box), places in owners.items()]
    for num_bytes, name, places in sorted(sized, key=lambda e: (len(e[2]) > 1, -e[0])) if spread else sized:
        rank, number = min(places, key=lambda place: (loads[place[0]], place[0])) if spread else places[0]
        duties[rank].append((name, number))
        loads[rank] += num_bytes
    return duties


def overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes share, None if that is nothing."""
    offsets = tuple(max(a, b) for a, b in zip(one.offsets, other.offsets, strict=True))
    ends = (min(a + n, b + m) for a, n, b, m in zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True))
    sizes = tuple(end - start for start, end in zip(offsets, ends, strict=True))
    return Box(offsets, sizes) if all(size > 0 for size in sizes) else None


def view(tensor: torch.Tensor, whole: Box, part: Box) -> torch.Tensor:
    """Return the view of `part` in a tensor that holds `whole`."""
    for dim, (start, first, size) in enumerate(zip(part.offsets, whole.offsets, part.sizes, strict=True)):
        tensor = tensor.narrow(dim, start - first, size)
    return tensor


def overlaps(wanted: Box, stored: Sequence[Box]) -> Iterator[tuple[int, Box]]:
    """Yield the stored boxes that share something with `wanted`: number and what is shared."""
    for number, box in enumerate(stored):
        shared = overlap(wanted, box)
        if shared is not None:
            yield number, shared


def _check_cover(owners: Mapping[tuple[str, Box], object], shapes: Mapping[str, Held]) -> None:
    covered = dict.fromkeys(shapes, 0)
    for name, box in owners:
        covered[name] += box.numel
    for name, held in shapes.items():
        total = math.prod(held.global_shape)
        assert covered[name] == total, f"the ranks' rectangles of {name} have {covered[name]:,d} of its {total:,d} elements"
