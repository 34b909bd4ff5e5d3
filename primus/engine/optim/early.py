"""`EarlyUpdate`: a step that goes ahead of the norm over all stages, and is taken back where that norm asks for another one.

What a stage knows is the sum of squares over itself and the stages before it. As long as that is finite and asks for no
clipping, the weights are updated; the sum over all stages then confirms it, or the update is undone and made anew with the
right divisor, or not at all (post-validation, arXiv 2401.10241, section 4). Either way the weights are those of a step that
waited.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from primus.engine.optim.optimizer import Optimizer, Update

__all__ = ["EarlyUpdate"]

_PATIENCE = 10
"""Steps in a row without clipping before a step goes ahead: what clips often is not worth trying."""


class EarlyUpdate:
    """The updates of one optimizer, one at a time."""

    def __init__(self, optimizer: Optimizer, *, exact: bool) -> None:
        """`exact` takes back by a copy of weights and state, bit for bit; otherwise by the inverse of the arithmetic."""
        self._optimizer, self._exact = optimizer, exact
        self._backup: list[Tensor] | None = None
        self._passed = 0
        self._is_made = False

    @property
    def is_armed(self) -> bool:
        """Whether the coming step may go ahead; the same on all ranks."""
        return self._passed >= (_PATIENCE if self._optimizer.config.clip_grad > 0.0 else 1)

    def note(self, update: Update) -> None:
        """Learn from a step that waited."""
        self._learn(passes=update.succeeded and update.grad_norm is not None and self._optimizer.passes(update.grad_norm))

    def begin(self, squares: float) -> None:
        """Update, if the sum of squares over the stages so far allows it. Gradients stay as they are."""
        self._is_made = self._optimizer.passes(self._norm(squares))
        if self._is_made:
            if self._exact:
                self._copy()
            self._optimizer.update(self._optimizer.loss_scale, keeps_gradients=True)

    def settle(self, squares: float, origin: Callable[[], str]) -> tuple[Update, bool]:
        """End the step with the sum over all stages; return what it did, and whether all stages were right to go ahead."""
        optimizer, norm = self._optimizer, self._norm(squares)
        passes = optimizer.passes(norm)
        self._learn(passes=passes)
        if passes:
            assert self._is_made, "what passes as a whole passes in parts"
            return optimizer.accept(norm), True
        if self._is_made:
            self._take_back()
        return optimizer.finish(norm, optimizer.loss_scale, origin), False

    def _norm(self, squares: float) -> float:
        return math.sqrt(squares) / self._optimizer.loss_scale

    def _learn(self, *, passes: bool) -> None:
        self._passed = self._passed + 1 if passes else 0

    def _copy(self) -> None:
        changed = self._optimizer.changed
        if self._backup is None:
            self._backup = [torch.empty_like(tensor) for tensor in changed]
        torch._foreach_copy_(self._backup, changed)

    def _take_back(self) -> None:
        self._optimizer.finish_gather()
        if self._exact:
            assert self._backup is not None
            self._optimizer.restore(self._backup)
        else:
            self._optimizer.undo(self._optimizer.loss_scale)
