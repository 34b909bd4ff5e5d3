"""Products of many experts: rows are sorted by expert, and each run of rows meets its own matrix.

`product_each` is a loop of products into one result; weight gradients go straight into the flat gradients where the weights
have a slot there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from primus.engine.parallel.slot import GradientSlot

__all__ = ["product_each", "weight_gradients"]


def product_each(x_MA: Tensor, matrices_EAB: Tensor, out_MB: Tensor, counts: Sequence[int]) -> None:
    """Fill out with x_e @ matrix_e for each expert's `counts[e]` rows."""
    sizes = list(counts)
    for x, matrix, out in zip(x_MA.split(sizes), matrices_EAB, out_MB.split(sizes), strict=True):
        if len(x):
            torch.mm(x, matrix, out=out)


def weight_gradients(dy_MF: Tensor, x_MH: Tensor, counts: Sequence[int], slot: GradientSlot | None) -> Tensor | None:
    """Return dy_e^T x_e of each expert, [E, F, H], for autograd, or add them to the slot and return None."""
    pairs = [(dy.t(), x) for dy, x in zip(dy_MF.split(list(counts)), x_MH.split(list(counts)), strict=True)]
    if slot is None:
        return torch.stack([dy @ x for dy, x in pairs])
    slot.add_products_(pairs)
    return None
