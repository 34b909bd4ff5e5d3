"""cap(x) = c tanh(x / c): a bound that keeps its gradient (Gemma 2, arXiv 2408.00118)."""

import torch
from torch import Tensor

__all__ = ["cap_slope", "soft_cap", "soft_cap_"]


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Return cap x tanh(x / cap); None leaves x alone."""
    return x if cap is None else cap * torch.tanh(x / cap)


def soft_cap_(x: Tensor, cap: float | None) -> Tensor:
    """Do it in place, without a gradient."""
    return x if cap is None else x.div_(cap).tanh_().mul_(cap)


def cap_slope(capped: Tensor, cap: float) -> Tensor:
    """Return the derivative where the cap gave `capped`."""
    return 1.0 - (capped / cap).square_()
