"""A sparse feed-forward half of a layer: tokens to their experts and back, beside the shared expert."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from primus.engine.model.mlp import MLP
from primus.engine.model.moe.experts import Experts
from primus.engine.model.moe.router import Router

__all__ = ["AttachLosses", "MoELayer", "attach_losses"]

AttachLosses = Callable[[Tensor, dict[str, Tensor]], Tensor]
"""Returns the router's weights, whose backward also starts the losses."""


class MoELayer(nn.Module):
    """sum of weight x expert(x) over a token's experts, + shared(x)."""

    def __init__(self, *, router: Router, experts: Experts, shared_experts: MLP | None, attach: AttachLosses) -> None:
        super().__init__()
        self.router, self.experts, self.shared_experts, self._attach = router, experts, shared_experts, attach

    def forward(self, x_SBH: Tensor) -> tuple[Tensor, None]:
        routing = self.router(x_SBH)
        weights_NE = self._attach(routing.weights_NE, routing.losses)
        x_NH = x_SBH.flatten(0, 1)
        # Rows by expert, and in the order of the tokens within each.
        _, token_M = routing.map_NE.t().nonzero(as_tuple=True)
        counts = routing.map_NE.sum(0).tolist()
        weights_M = weights_NE.t()[routing.map_NE.t()]
        y_MH = self.experts(x_NH.index_select(0, token_M), weights_M, counts)
        y_NH = torch.zeros_like(x_NH).index_add(0, token_M, y_MH.to(x_NH.dtype))
        y_SBH = y_NH.view_as(x_SBH)
        if self.shared_experts is not None:
            shared, _ = self.shared_experts(x_SBH)
            y_SBH = y_SBH + shared
        return y_SBH, None


def attach_losses(weights_NE: Tensor, losses: dict[str, Tensor]) -> Tensor:
    """Let the backward of the weights start that of the losses, with a gradient of one."""
    for loss in losses.values():
        weights_NE = _Attach.apply(weights_NE, loss)
    return weights_NE


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = ctx.saved_tensors
        return dx, torch.ones_like(loss)
