"""A weight with its adapter added in: W + s B A, or diag(m / n)(W + s B A) with n the norms of its rows (DoRA).

Sums are taken in at least fp32 and rounded once: the weight's own dtype would lose an update that is small beside it.
"""

import torch
from torch import Tensor

__all__ = ["merged"]


def merged(weight: Tensor, a: Tensor, b: Tensor, *, scale: float, magnitude: Tensor | None = None) -> Tensor:
    """Return the weight [out, in] for a [r, in], b [out, r] and m [out]; all may have a leading dim of experts, or some."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    whole = weight.to(wide) + scale * (b.to(wide) @ a.to(wide))
    if magnitude is not None:
        whole *= (magnitude.to(wide) / torch.linalg.vector_norm(whole, dim=-1)).unsqueeze(-1)
    return whole.to(weight.dtype)
