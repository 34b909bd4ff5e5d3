"""A sparse feed-forward half of a layer: tokens to their experts and back, beside the shared expert."""

from torch import Tensor, nn

from primus.engine.model.mlp import MLP
from primus.engine.model.moe.dispatch import Dispatch
from primus.engine.model.moe.experts import Experts
from primus.engine.model.moe.real import RealTokens
from primus.engine.model.moe.router import Router
from primus.engine.model.moe.token_numbers import TokenNumbers
from primus.engine.model.recompute import Runner

__all__ = ["MoELayer"]


class MoELayer(nn.Module):
    """sum of weight x expert(x) over a token's experts, + shared(x); what only fills sequences up has no experts."""

    def __init__(
        self,
        *,
        router: Router,
        experts: Experts,
        shared_experts: MLP | None,
        shared_overlaps: bool,
        dispatch: Dispatch,
        run: Runner,
    ) -> None:
        """With `shared_overlaps` the shared expert works while tokens travel, forward and backward; `run` runs all of it."""
        super().__init__()
        self.router, self.experts, self.shared_experts = router, experts, shared_experts
        self.token_numbers: TokenNumbers | None = None
        """For experts that drop values in training: what they know tokens by."""
        self._shared_overlaps, self._dispatch, self._run = shared_overlaps, dispatch, run

    def forward(self, x_SBH: Tensor, real: RealTokens | None = None) -> tuple[Tensor, None]:
        return self._run(self._computed, x_SBH, real), None

    def _computed(self, x_SBH: Tensor, real: RealTokens | None) -> Tensor:
        routing = self.router(x_SBH, real)
        journey = self._dispatch(x_SBH.flatten(0, 1), routing.weights, routing.map)
        shared = self._shared(x_SBH) if self._shared_overlaps else None
        rows = journey.arrive()
        numbers = () if self.token_numbers is None or not self.training else (journey.carry(self.token_numbers(x_SBH)),)
        y_SBH = journey.back(self.experts(*rows, *numbers)).view_as(x_SBH)
        if not self._shared_overlaps:
            shared = self._shared(x_SBH)
        return y_SBH if shared is None else y_SBH + shared

    def _shared(self, x_SBH: Tensor) -> Tensor | None:
        if self.shared_experts is None:
            return None
        y_SBH: Tensor = self.shared_experts(x_SBH)[0]
        return y_SBH
