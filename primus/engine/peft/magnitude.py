"""The lengths that DoRA starts from: the row norms of each adapted weight, so that the model is the one that was loaded.

They are taken from the rectangles that ranks hold, whatever divides them, once the weights are there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards, global_shape, sharding_of
from primus.engine.peft.adapter import LoRA
from primus.engine.peft.linears import AdaptedLinear, row_squares

__all__ = ["set_magnitudes"]


@torch.no_grad()
def set_magnitudes(chunks: Sequence[nn.Module], weights: Mapping[str, Shards], mesh: Mesh) -> None:
    """Fill the magnitudes of a rank's chunks, among its `weights` under global names; nothing without DoRA.

    All ranks call it; those of a stage have the same linears.
    """
    found = {
        name: module.adapter.weight_magnitude
        for chunk in chunks
        for name, module in chunk.named_modules()
        if isinstance(module, AdaptedLinear) and isinstance(module.adapter, LoRA) and module.adapter.has_magnitude
    }
    if not found:
        return
    rows = {name: global_shape(each.shape, sharding_of(each), mesh)[0] for name, each in found.items()}
    # A rank that holds nothing of the weights adds in the same dtype as the others.
    norms = _row_norms(rows, weights, mesh, next(iter(found.values())).dtype)
    for name, norm in zip(rows, norms.split(list(rows.values())), strict=True):
        magnitudes = weights.get(f"{name}.adapter.weight_magnitude")
        for chunk in () if magnitudes is None else magnitudes.chunks:
            (first,) = chunk.offsets
            chunk.data.copy_(norm[first : first + len(chunk.data)])


def _row_norms(rows: Mapping[str, int], weights: Mapping[str, Shards], mesh: Mesh, dtype: torch.dtype) -> Tensor:
    """Return the norms of the rows of all named weights, one after the other.

    Ranks may hold parts of a row or the same row; counted elements tell how many times a row is in the sum.
    """
    sums = torch.zeros(2, sum(rows.values()), dtype=dtype, device=mesh.device)
    start = 0
    for name, count in rows.items():
        shards = weights.get(f"{name}.weight")
        for chunk in () if shards is None else shards.chunks:
            first = start + chunk.offsets[0]
            squares, seen = sums[:, first : first + len(chunk.data)]
            squares += row_squares(chunk.data)
            assert shards is not None
            seen += chunk.data.shape[1] / shards.global_shape[1]
        start += count
    for group in (mesh.tp, mesh.dp_cp):
        all_reduce_(sums, group)
    return (sums[0] / sums[1].round()).sqrt()
