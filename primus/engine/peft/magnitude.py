"""The lengths that DoRA starts from: the row norms of each adapted weight, so that the model is the one that was loaded.

They are taken from the rectangles that ranks hold, whatever divides them, once the weights are there.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from primus.engine.model.moe.experts import GroupedWeight
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Chunk, Shards, global_shape, sharding_of
from primus.engine.peft.adapter import LoRA
from primus.engine.peft.experts import ExpertLoRA
from primus.engine.peft.linears import AdaptedLinear, row_squares

__all__ = ["set_magnitudes"]


@torch.no_grad()
def set_magnitudes(chunks: Sequence[nn.Module], weights: Mapping[str, Shards], mesh: Mesh) -> None:
    """Fill the magnitudes of a rank's chunks, among its `weights` under global names; nothing without DoRA.

    All ranks call it; those of a stage have the same linears.
    """
    linears = ((name, module) for chunk in chunks for name, module in chunk.named_modules())
    found = {name: own for name, module in linears if (own := _magnitude_of(module)) is not None}
    if not found:
        return
    shapes = {name: global_shape(each.shape, sharding_of(each), mesh) for name, each in found.items()}
    # A rank that holds nothing of the weights adds in the same dtype as the others.
    norms = _row_norms(shapes, weights, mesh, next(iter(found.values())).dtype)
    for name, norm in norms.items():
        magnitudes = weights.get(f"{name}.adapter.weight_magnitude")
        for chunk in () if magnitudes is None else magnitudes.chunks:
            chunk.data.copy_(norm[_rows(chunk, norm.dim())])


def _magnitude_of(linear: nn.Module) -> nn.Parameter | None:
    adapter = dict(linear.named_children()).get("adapter") if isinstance(linear, AdaptedLinear | GroupedWeight) else None
    if not (isinstance(adapter, LoRA | ExpertLoRA) and adapter.has_magnitude):
        return None
    return adapter.weight_magnitude


def _rows(chunk: Chunk, dims: int) -> tuple[slice, ...]:
    """Return where a rectangle lies along the first dims."""
    return tuple(slice(low, low + size) for low, size in zip(chunk.offsets[:dims], chunk.data.shape, strict=False))


def _row_norms(
    shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Shards], mesh: Mesh, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the norms of the rows of all named weights, in these shapes.

    Ranks may hold parts of a row or the same row; counted elements tell how many times a row is in the sum.
    """
    sizes = [math.prod(shape) for shape in shapes.values()]
    sums = torch.zeros(2, sum(sizes), dtype=dtype, device=mesh.device)
    for (name, shape), part in zip(shapes.items(), sums.split(sizes, dim=1), strict=True):
        squares, seen = part.unflatten(1, shape)
        shards = weights.get(f"{name}.weight")
        for chunk in () if shards is None else shards.chunks:
            rows = _rows(chunk, len(shape))
            squares[rows] += row_squares(chunk.data)
            assert shards is not None
            seen[rows] += chunk.data.shape[-1] / shards.global_shape[-1]
    for group in (mesh.tp, mesh.dp_cp):
        all_reduce_(sums, group)
    norms = (sums[0] / sums[1].round()).sqrt()
    return {name: norm.view(shape) for (name, shape), norm in zip(shapes.items(), norms.split(sizes), strict=True)}
