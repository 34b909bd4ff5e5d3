"""Runs a part of the model so that its activations are computed again in the backward, with the same random draws."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.random import RandomStreams

__all__ = ["DistributedRecompute", "Recompute", "RecomputedModule", "Runner", "keep"]

Runner = Callable[..., Tensor]
"""Calls a function with the arguments that follow it."""


def keep(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call plainly: everything that the backward needs is kept."""
    return function(*arguments)


class Recompute:
    """Keeps the arguments alone."""

    def __init__(self, streams: RandomStreams) -> None:
        self._streams = streams

    def __call__(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return function(*arguments)
        result: Tensor = checkpoint(function, *arguments, use_reentrant=False, context_fn=self._contexts)
        return result

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what surrounds the call and its replay; torch itself replays the default stream."""
        return nullcontext(), self._streams.replay(self._streams.state_dict())


class DistributedRecompute(Recompute):
    """Keeps a slice of the first argument [S, B, H] on each tensor-parallel rank; they gather it for the replay."""

    def __init__(self, streams: RandomStreams, tp: Group) -> None:
        super().__init__(streams)
        self._tp = tp

    def __call__(self, function: Callable[..., Tensor], *arguments: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return function(*arguments)
        whole, *others = arguments

        def gathered(part: Tensor, *others: Any) -> Tensor:
            return function(collectives.gather_sequence(part, self._tp, partial_grad=False), *others)

        # A copy: the slice alone would hold the whole tensor's memory.
        return super().__call__(gathered, collectives.scatter_sequence(whole, self._tp).clone(), *others)


class RecomputedModule(nn.Module):
    """A module without parameters that is computed again."""

    def __init__(self, module: nn.Module, recompute: Recompute) -> None:
        super().__init__()
        self.module, self._recompute = module, recompute

    def forward(self, *arguments: Any) -> Tensor:
        return self._recompute(self.module, *arguments)
