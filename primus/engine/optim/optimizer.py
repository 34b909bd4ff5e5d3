"""`Optimizer` turns reduced gradients into updated weights: norm, overflow check, clipping, update, gather.

Memory traffic is what a step costs, so the gradients are read once for the norm and once by the update. Unscaling and
clipping are one divisor inside the update, and an overflow shows in the norm: a NaN or infinite element makes it so.
With the distributed optimizer the ranges are this rank's shards and the norm also sums over the data-parallel ranks; the
numbers are the same.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from primus.engine.config import OptimizerConfig
from primus.engine.optim.flat import FlatRange
from primus.engine.optim.grouping import UpdateGroup
from primus.engine.optim.kinds import kinds_of
from primus.engine.optim.norm import clip_divisor
from primus.engine.optim.rule import Hyper, UpdateRule
from primus.engine.optim.schedule import OptParamScheduler
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.sharding import Shards, flat_range_shards, join
from primus.engine.precision import LossScaler
from primus.errors import InputError, RunError

__all__ = ["Optimizer", "Update"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What a step did."""

    succeeded: bool
    """False: the gradients overflowed and nothing was updated."""
    grad_norm: float | None
    """Before clipping, without the loss scale; None after an overflow."""
    num_zeros: int | None = None
    """Exact zeros in the gradient, if they are counted."""
    params_norm: float | None = None
    """Norm of the main weights after the update, if it is asked for."""


class Optimizer:
    """The update rule over flat memory, with its schedule and loss scaler. `build_optimizer` makes one."""

    def __init__(
        self,
        config: OptimizerConfig,
        *,
        rule: UpdateRule,
        ranges: Sequence[FlatRange],
        scheduler: OptParamScheduler,
        scaler: LossScaler | None,
        buffers: DataParallel,
        mesh: Mesh,
        check_finite: bool,
        first_chunk_apart: bool = False,
    ) -> None:
        """`first_chunk_apart` gathers the first model chunk while the others are still updated."""
        self.config = config
        self.scheduler = scheduler
        self.scaler = scaler
        self.num_updates = 0
        """Successful steps so far; Adam's bias correction counts them."""
        self._rule, self._ranges, self._buffers, self._mesh, self._check_finite = rule, ranges, buffers, mesh, check_finite
        self._portions = _portions(ranges, first_chunk_apart=first_chunk_apart)
        self._kinds = kinds_of(ranges, buffers, mesh)

    @property
    def ranges(self) -> Sequence[FlatRange]:
        """The memory that is updated, with its state."""
        return self._ranges

    @property
    def learning_rate(self) -> float:
        """Rate of the coming step, of parameters without a rate of their own."""
        return self.scheduler.lr()

    @property
    def loss_scale(self) -> float:
        """Factor on the loss of the coming step."""
        return self.scaler.scale if self.scaler else 1.0

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * self.loss_scale if self.loss_scale != 1.0 else loss

    def advance_schedule(self, samples: int) -> None:
        """Move the schedules on by the samples of a successful step."""
        self.scheduler.step(samples)

    def step(self, *, grad_divisor: float = 1.0, origin: Callable[[], str] = str) -> Update:
        """Update the weights by the reduced gradients and gather them; gradients are used up.

        `grad_divisor` divides all gradients (the number of tokens, say). Gradients that are not finite are a RunError on all
        ranks that says what `origin` returns (all ranks call it, so it may communicate); the weights stay as they were.
        """
        divisor = self.loss_scale * grad_divisor
        squares = [kind.squares(kind.groups, self._mesh.device) for kind in self._kinds]
        # Waits for the device: the step decides by this number whether and how far to go.
        norm = math.sqrt(torch.stack(squares).sum().item()) / divisor
        return self.finish(norm, divisor, origin)

    def finish(self, norm: float, divisor: float, origin: Callable[[], str]) -> Update:
        """End a step whose gradients have this norm once they are divided: update, or skip it."""
        if not math.isfinite(norm) and (self.scaler or self._check_finite):
            return self._reject(norm, origin)
        num_zeros = None
        if self.config.log_num_zeros_in_grad:
            num_zeros = sum(kind.zeros(self._mesh.device) for kind in self._kinds)
        self.update(divisor * clip_divisor(norm, self.config.clip_grad))
        return self.accept(norm, num_zeros)

    def accept(self, norm: float, num_zeros: int | None = None) -> Update:
        """End a step that has updated the weights."""
        if self.scaler:
            self.scaler.update(found_inf=False)
        return Update(succeeded=True, grad_norm=norm, num_zeros=num_zeros, params_norm=self._params_norm())

    def passes(self, norm: float) -> bool:
        """Return whether gradients of this norm are taken as they are."""
        return math.isfinite(norm) and clip_divisor(norm, self.config.clip_grad) == 1.0

    def squares(self) -> Tensor:
        """Return the sum of squares of this stage's gradients, fp64, over the ranks that share the stage."""
        return torch.stack([kind.squares(kind.stage_groups, self._mesh.device) for kind in self._kinds]).sum()

    @property
    def changed(self) -> list[Tensor]:
        """What an update changes: main weights and their state."""
        return [tensor for r in self._ranges for tensor in (r.main, *r.states)]

    def finish_gather(self) -> None:
        """Wait until the last update is on all ranks."""
        self._buffers.finish_param_gather()

    def restore(self, before: Sequence[Tensor]) -> None:
        """Take the last update back: `changed` becomes what it was."""
        torch._foreach_copy_(self.changed, list(before))
        self.num_updates -= 1
        for portion in self._portions:
            self._publish(portion)

    def undo(self, divisor: float) -> None:
        """Take the last update back by the inverse of its arithmetic, to rounding; the gradients are still what they were."""
        for portion in self._portions:
            for tensors, h in self._calls(portion, divisor):
                self._rule.undo_(tensors.mains, tensors.wide_grads(), tensors.states, h)
            self._publish(portion)
        self.num_updates -= 1

    def _reject(self, norm: float, origin: Callable[[], str]) -> Update:
        """Skip the step under loss scaling; without it there is no way to go on."""
        if not self.scaler:
            kind = "NaN" if math.isnan(norm) else "Inf"
            raise RunError(f"found {kind} in the gradient norm {origin()}; the weights were not updated")
        self.scaler.update(found_inf=True)
        return Update(succeeded=False, grad_norm=None, params_norm=self._params_norm())

    def update(self, divisor: float, *, keeps_gradients: bool = False) -> None:
        """Update the weights by the gradients over `divisor`; the gradients come back divided unless they are kept."""
        self.num_updates += 1
        for portion in self._portions:
            for tensors, h in self._calls(portion, divisor):
                self._rule.update_(tensors.mains, tensors.wide_grads(copy=keeps_gradients), tensors.states, h)
            self._publish(portion)

    def _calls(self, portion: "_Portion", divisor: float) -> Iterator[tuple["_Tensors", Hyper]]:
        """Yield the arguments of the rule, a group at a time, for the present update."""
        rates, decay = self.scheduler.rates(), self.scheduler.wd
        for group, tensors in portion.groups.items():
            yield (
                tensors,
                Hyper(
                    lr=rates[group.rate],
                    weight_decay=decay if group.decays else 0.0,
                    step=self.num_updates,
                    grad_divisor=divisor,
                ),
            )

    def _publish(self, portion: "_Portion") -> None:
        """Give main weights to the model on all ranks."""
        for r in portion.ranges:
            r.main_to_model()
        self._buffers.gather_params(portion.chunks)

    def _params_norm(self) -> float | None:
        if not self.config.log_params_norm:
            return None
        return math.hypot(*(kind.mains_norm(self._mesh.device) for kind in self._kinds))

    def state_shards(self) -> dict[str, Shards]:
        """Return this rank's rectangles of every state tensor, as views: loading into them restores the state.

        Names are `optimizer.state.<kind>.<parameter>`; the kinds are the rule's, and `main_param` where main weights are not
        the model's. All exist from the start, so a run that has made no step can be saved.
        """
        shards: dict[str, Shards] = {}
        for r in self._ranges:
            kinds = dict(zip(self._rule.state_names, r.states, strict=True))
            if r.has_main:
                kinds["main_param"] = r.main
            for piece in r.pieces:
                for kind, flat in kinds.items():
                    part = flat_range_shards(
                        flat[piece.start : piece.stop], piece.param_start, piece.param.shape, piece.sharding, self._mesh
                    )
                    name = f"optimizer.state.{kind}.{piece.name}"
                    shards[name] = join(shards.get(name), part)
        return shards

    def common_state(self) -> dict[str, Any]:
        """Return the state that is one for all ranks: the count of updates, the schedule, the loss scaler."""
        scaler = self.scaler.state_dict() if self.scaler else None
        return {
            "optimizer": self.config.optimizer,
            "step": self.num_updates,
            "scheduler": self.scheduler.state_dict(),
            "loss_scaler": scaler,
        }

    def load_common_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved common state."""
        if state["optimizer"] != self.config.optimizer:
            raise InputError(
                f"the checkpoint was written by optimizer {state['optimizer']!r}, the run uses {self.config.optimizer!r}; "
                "keep the optimizer, or set no_load_optim to start with a fresh state"
            )
        self.num_updates = int(state["step"])
        self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler and state["loss_scaler"] is not None:
            self.scaler.load_state_dict(state["loss_scaler"])

    def reload_model_params(self) -> None:
        """Take the main weights from the model's, after weights were loaded without optimizer state."""
        for r in self._ranges:
            r.model_to_main()


@dataclass(frozen=True, slots=True)
class _Tensors:
    """All stretches of one group: the arguments of one call."""

    mains: list[Tensor]
    grads: list[Tensor]
    states: list[list[Tensor]]

    def wide_grads(self, *, copy: bool = False) -> list[Tensor]:
        """Return the gradients in the dtype of the main weights."""
        return [grad.to(main.dtype, copy=copy) for grad, main in zip(self.grads, self.mains, strict=True)]


@dataclass(frozen=True, slots=True)
class _Portion:
    """What is updated before the next gather begins."""

    chunks: frozenset[int] | None
    """Model chunks; None: all."""
    ranges: Sequence[FlatRange]
    groups: dict[UpdateGroup, _Tensors]


def _portions(ranges: Sequence[FlatRange], *, first_chunk_apart: bool) -> list[_Portion]:
    numbers = frozenset(r.chunk for r in ranges)
    if not first_chunk_apart or len(numbers) < 2:
        return [_Portion(None, ranges, _by_group(ranges))]
    first = frozenset({min(numbers)})
    parts = {chunks: [r for r in ranges if r.chunk in chunks] for chunks in (first, numbers - first)}
    return [_Portion(chunks, part, _by_group(part)) for chunks, part in parts.items()]


def _by_group(ranges: Sequence[FlatRange]) -> dict[UpdateGroup, _Tensors]:
    groups: dict[UpdateGroup, _Tensors] = {}
    for r in ranges:
        for group, span in r.stretches(lambda piece: piece.group):
            tensors = groups.setdefault(group, _Tensors([], [], [[] for _ in r.states]))
            tensors.mains.append(r.main[span])
            tensors.grads.append(r.grad[span])
            for flats, state in zip(tensors.states, r.states, strict=True):
                flats.append(state[span])
    return groups
