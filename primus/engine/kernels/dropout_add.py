"""Bias, dropout and residual addition: residual + dropout(y + bias), the end of both halves of a layer."""

from torch import Tensor
from torch.nn import functional as F

__all__ = ["bias_dropout_add"]


def bias_dropout_add(y: Tensor, bias: Tensor | None, residual: Tensor, probability: float) -> Tensor:
    """Return residual + dropout(y + bias) in the residual's dtype; `probability` is 0 in evaluation."""
    if bias is not None:
        y = y + bias
    if probability:
        y = F.dropout(y, probability)
    return residual + y.to(residual.dtype)
