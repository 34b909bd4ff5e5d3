"""Adam with decoupled decay (AdamW, arXiv 1711.05101) on flat tensors.

With g the gradient, d the decay and t the number of the update:

    p = p - lr d p
    m = b1 m + (1 - b1) g
    v = b2 v + (1 - b2) g^2
    p = p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from primus.engine.optim.rule import Hyper, fused_divisor, has_fused_form

__all__ = ["Adam"]


class Adam:
    """The rule `adam`: decoupled decay, bias correction, `eps` outside the square root."""

    state_names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(self, *, beta1: float, beta2: float, eps: float) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps

    def update_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Update parameters and moments in place."""
        if has_fused_form(params[0]):
            self._fused_(params, grads, states, h)
            return
        for param, grad, moment, variance in zip(params, grads, *states, strict=True):
            self.reference_(param, grad, moment, variance, h)

    def reference_(self, param: Tensor, grad: Tensor, moment: Tensor, variance: Tensor, h: Hyper) -> None:
        """Update one tensor by the formula."""
        grad = grad / h.grad_divisor
        param.mul_(1.0 - h.lr * h.weight_decay)
        moment.mul_(self.beta1).add_(grad, alpha=1.0 - self.beta1)
        variance.mul_(self.beta2).addcmul_(grad, grad, value=1.0 - self.beta2)
        spread = variance.sqrt().div_(math.sqrt(1.0 - self.beta2**h.step)).add_(self.eps)
        param.addcdiv_(moment, spread, value=-h.lr / (1.0 - self.beta1**h.step))

    def undo_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        """Take an update back: the lines of the formula solved for what stood before, the last line first."""
        for param, grad, moment, variance in zip(params, grads, *states, strict=True):
            grad = grad / h.grad_divisor
            spread = variance.sqrt().div_(math.sqrt(1.0 - self.beta2**h.step)).add_(self.eps)
            param.addcdiv_(moment, spread, value=h.lr / (1.0 - self.beta1**h.step)).div_(1.0 - h.lr * h.weight_decay)
            _solve_(moment.sub_(grad, alpha=1.0 - self.beta1), self.beta1)
            # Rounding must not leave a negative average of squares.
            _solve_(variance.addcmul_(grad, grad, value=self.beta2 - 1.0), self.beta2).clamp_(min=0.0)

    def _fused_(self, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[Sequence[Tensor]], h: Hyper) -> None:
        moments, variances = states
        step = torch.full((), float(h.step), dtype=torch.float32, device=params[0].device)
        torch._fused_adamw_(
            list(params),
            list(grads),
            list(moments),
            list(variances),
            [],
            [step] * len(params),
            lr=h.lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=h.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=fused_divisor(grads, h.grad_divisor),
        )


def _solve_(average: Tensor, decay: float) -> Tensor:
    """Divide by what a running average was multiplied by; of one without memory nothing counts."""
    return average.div_(decay) if decay > 0.0 else average.zero_()
