"""Products of many experts: rows are sorted by expert, and each run of rows meets its own matrix.

`product_each` is a loop of products into one result; weight gradients go straight into the flat gradients where the weights
have a slot there.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from primus.engine.kernels.pick import Form
from primus.engine.parallel.slot import GradientSlot

__all__ = ["Product", "product_each", "product_form", "weight_gradients"]

Product = Callable[[Tensor, Tensor, Tensor, Sequence[int]], None]


def product_form(form: Form) -> Product:
    """Return the function that `form` means; all have the signature of `product_each`."""
    if form == "triton":
        from primus.engine.kernels.triton_forms import grouped

        return grouped.product_each
    return product_each


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
