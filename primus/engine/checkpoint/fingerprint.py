"""Which weights they are: one number for all of them, the same in every layout, format and dtype that holds their values.

Each element counts as the bits of its value times a number that its place in the global tensor gives, modulo 2^64. Sums do not
care who adds them, so ranks take what they hold; one changed bit changes the sum. Layers that predict further ahead are left
out: a run may do without them.
"""

import hashlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from primus.engine.checkpoint.agree import everywhere, on_first
from primus.engine.checkpoint.dist_plan import Box
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.sharding import Shards

__all__ = ["digest", "fingerprint", "sums"]

_BLOCK = 1 << 20
"""Elements at a time: their places and products take 8 bytes each."""
_ODD = (-7046029254386353131, -4658895280553007687)
"""Multipliers of the SplitMix64 kind, as signed numbers."""
_MODULUS = 1 << 64
_PREDICTIONS = "mtp."


def fingerprint(tensors: Mapping[str, Shards], group: Group) -> str:
    """Return the fingerprint of the tensors that the ranks of a group hold parts of; rectangles of replicas count once."""
    held = everywhere(group, lambda: {name: sums(shards) for name, shards in tensors.items()})

    def whole() -> str:
        boxes = {(name, box): value for rank in held for name, parts in rank.items() for box, value in parts.items()}
        totals: dict[str, int] = {}
        for (name, _), value in boxes.items():
            totals[name] = totals.get(name, 0) + value
        return digest(totals)

    return on_first(group, whole)


def sums(shards: Shards) -> dict[Box, int]:
    """Return the sum over each rectangle."""
    with torch.no_grad():
        return {
            Box(chunk.offsets, tuple(chunk.data.shape)): _sum(chunk.data, chunk.offsets, shards.global_shape)
            for chunk in shards.chunks
        }


def digest(totals: Mapping[str, int]) -> str:
    """Return the fingerprint of whole tensors whose sums these are."""
    kept = sorted((name, total) for name, total in totals.items() if not name.startswith(_PREDICTIONS))
    text = "\n".join(f"{name} {total % _MODULUS:016x}" for name, total in kept)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _sum(data: Tensor, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    total = 0
    for block, starts in _blocks(data, offsets):
        total += int((_bits(block) * _weights(block, starts, shape)).sum())
    return total


def _blocks(data: Tensor, offsets: tuple[int, ...]) -> Iterator[tuple[Tensor, tuple[int, ...]]]:
    """Yield stretches of rows that have few enough elements, or one row after the other."""
    if data.numel() <= _BLOCK or data.dim() == 0:
        if data.numel():
            yield data, offsets
        return
    rows = max(1, _BLOCK * len(data) // data.numel())
    for first in range(0, len(data), rows):
        part, starts = data[first : first + rows], (offsets[0] + first, *offsets[1:])
        if len(part) > 1 or data.dim() == 1:
            yield part, starts
        else:
            yield from ((each.unsqueeze(0), (starts[0], *rest)) for each, rest in _blocks(part[0], starts[1:]))


def _bits(values: Tensor) -> Tensor:
    """Return the bits of the values in the narrowest dtype that holds all of bf16, fp16 and fp32."""
    if values.dtype == torch.float64:
        return values.contiguous().view(torch.int64)
    return values.to(torch.float32).contiguous().view(torch.int32).to(torch.int64)


def _weights(block: Tensor, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    place = torch.zeros((1,) * block.dim(), dtype=torch.int64, device=block.device)
    for dim, (start, size) in enumerate(zip(offsets, block.shape, strict=True)):
        along = torch.arange(start, start + size, device=block.device).view([-1 if d == dim else 1 for d in range(block.dim())])
        place = place * shape[dim] + along
    mixed = (place + 1) * _ODD[0]
    mixed = (mixed ^ (mixed >> 29)) * _ODD[1]
    return mixed | 1
