"""What an update rule is: it changes flat parameters by flat gradients, and keeps flat state beside them.

A rule has a reference form, which is the formula, and a fused form in one pass over memory; `has_fused_form` picks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Hyper", "UpdateRule", "fused_divisor", "has_fused_form"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hyper:
    """Values of one update of one group of parameters."""

    lr: float
    weight_decay: float
    step: int
    """Number of this update, from 1."""
    grad_divisor: float = 1.0
    """Gradients are divided by this first: the loss scale and the clipping in one number."""


class UpdateRule(Protocol):
    """How parameters follow their gradients."""

    state_names: tuple[str, ...]
    """Checkpoint names of the state tensors, each as long as the parameters; all start at zero."""

    def update_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Update parameters and state in place. `states` holds one sequence a state name; gradients may come back divided."""

    def undo_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Take an update back in place, to rounding: the arguments are those of `update_`, with the gradients it was given."""


def has_fused_form(tensor: Tensor) -> bool:
    """Return whether torch has one-pass updates for this device and dtype."""
    return tensor.device.type in ("cpu", "cuda", "meta") and tensor.dtype in (torch.float32, torch.float64)


def fused_divisor(grads: Sequence[Tensor], divisor: float) -> Tensor | None:
    """Return the divisor as the fused kernels take it, or None if there is nothing left to divide.

    The kernels read a float32 divisor; that would round float64 gradients, so those are divided here, in a pass of their own.
    """
    if divisor == 1.0:
        return None
    if grads[0].dtype == torch.float64:
        torch._foreach_div_(list(grads), divisor)
        return None
    return torch.full((), divisor, dtype=torch.float32, device=grads[0].device)
