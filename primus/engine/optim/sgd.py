"""Stochastic gradient descent with momentum on flat tensors, as torch does it: decay is coupled, momentum is undamped.

With g the gradient, d the decay and mu the momentum:

    g = g + d p
    b = mu b + g            (b starts at zero)
    p = p - lr b
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from primus.engine.optim.rule import Hyper, fused_divisor, has_fused_form

__all__ = ["SGD"]


class SGD:
    """The rule `sgd`. Without momentum there is no state."""

    def __init__(self, *, momentum: float) -> None:
        self.momentum = momentum
        self.state_names: tuple[str, ...] = ("momentum_buffer",) if momentum else ()

    def update_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Update parameters and momentum in place."""
        buffers: Sequence[Tensor] = states[0] if self.momentum else []
        if has_fused_form(params[0]):
            self._fused_(params, grads, buffers, h)
            return
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            self.reference_(param, grad, buffers[i] if self.momentum else None, h)

    def reference_(self, param: Tensor, grad: Tensor, buffer: Tensor | None, h: Hyper) -> None:
        """Update one tensor by the formula."""
        grad = (grad / h.grad_divisor).add_(param, alpha=h.weight_decay)
        if buffer is not None:
            grad = buffer.mul_(self.momentum).add_(grad)
        param.sub_(grad, alpha=h.lr)

    def undo_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Take an update back: the lines of the formula solved for what stood before, the last line first."""
        buffers: Sequence[Tensor] = states[0] if self.momentum else []
        for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
            grad = grad / h.grad_divisor
            if not self.momentum:
                param.add_(grad, alpha=h.lr).div_(1.0 - h.lr * h.weight_decay)
                continue
            param.add_(buffers[i], alpha=h.lr)
            buffers[i].sub_(grad.add_(param, alpha=h.weight_decay)).div_(self.momentum)

    def _fused_(self, params: Sequence[Tensor], grads: Sequence[Tensor], buffers: Sequence[Tensor], h: Hyper) -> None:
        torch._fused_sgd_(
            list(params),
            list(grads),
            list(buffers),
            weight_decay=h.weight_decay,
            momentum=self.momentum,
            lr=h.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            # A zero buffer makes the first step like any other: mu * 0 + g.
            is_first_step=False,
            grad_scale=fused_divisor(grads, h.grad_divisor),
        )
