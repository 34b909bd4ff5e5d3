"""Adapters as matrices: those of the parts of a linear as one, and a weight with its adapter added in.

That is W + s B A, or diag(m / n)(W + s B A) with n the norms of its rows (DoRA). Sums are taken in at least fp32 and rounded
once: the weight's own dtype would lose an update that is small beside it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fused", "merged"]


def fused(pairs: Mapping[str, tuple[Tensor, Tensor]], widths: Mapping[str, int], *, groups: int) -> tuple[Tensor, Tensor]:
    """Return A [parts * r, in] and B [out, parts * r] for the A [r, in] and B [rows, r] of some parts of a linear.

    In each of its groups of rows, the parts have so many one after the other; rows of a part without a pair are zero.
    """
    a = torch.cat([first for first, _ in pairs.values()])
    rank, blocks = len(a) // len(pairs), []
    before = {name: number * rank for number, name in enumerate(pairs)}
    for name, width in widths.items():
        if name in pairs:
            own = pairs[name][1].view(groups, width, rank)
            blocks.append(F.pad(own, (before[name], len(a) - before[name] - rank)))
        else:
            blocks.append(a.new_zeros(groups, width, len(a)))
    return a, torch.cat(blocks, dim=1).flatten(0, 1)


def merged(weight: Tensor, a: Tensor, b: Tensor, *, scale: float, magnitude: Tensor | None = None) -> Tensor:
    """Return the weight [out, in] for a [r, in], b [out, r] and m [out]; all may have a leading dim of experts, or some."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    whole = weight.to(wide) + scale * (b.to(wide) @ a.to(wide))
    if magnitude is not None:
        whole *= (magnitude.to(wide) / torch.linalg.vector_norm(whole, dim=-1)).unsqueeze(-1)
    return whole.to(weight.dtype)
