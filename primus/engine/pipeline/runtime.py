"""`execute` runs one rank's plan of a step, whatever the schedule: it knows none by name.

A forward starts from the hidden states of the stage before, or from the data; a backward from the gradient of what its forward
made, or from the loss. Between the two a stage keeps its input, and the edge of the graph at its output, not the output itself.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from primus.engine.parallel.lanes import Lanes
from primus.engine.pipeline.links import Links
from primus.engine.pipeline.offload import OffloadStore
from primus.engine.pipeline.schedules import Message, Op, Pause, RankPlan, Task

__all__ = ["Around", "Forward", "Gradients", "Roots", "Trial", "execute"]

Forward = Callable[[Op, Tensor | None], Tensor]
"""Runs an operation's chunk on hidden states (None: the data) and returns hidden states, or the scalar to differentiate."""


Around = Callable[[Op], AbstractContextManager[None]]

Roots = Callable[[Op], Sequence[tuple[GradientEdge, Tensor]]]
"""Says where an operation's backward starts besides its output: places in its graph, and the gradients that enter there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Operations that run before it is known whether they count."""

    pause: Pause
    counts: Callable[[], bool]
    """Asked once, at the pause; False: they are forgotten on all ranks, and run again."""


class Gradients(Protocol):
    """What the runtime asks of those who gather the gradients."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Backwards in the body are not the last of a step."""

    def deferring(self, key: Op) -> AbstractContextManager[None]:
        """Weight gradients of the body are set aside under `key`."""

    def compute_deferred(self, key: Op) -> None:
        """Compute the weight gradients set aside under `key`."""

    def compute_postponed(self) -> None:
        """Compute the weight gradients that wait for the end of the backwards."""

    def release(self, chunk: int) -> None:
        """Other stages reduce the gradients of this chunk now."""

    def gather_ahead(self, chunk: int) -> None:
        """Other stages gather the weights of this chunk now."""


def execute(
    plan: RankPlan,
    *,
    forward: Forward,
    gradients: Gradients | None = None,
    links: Links | None = None,
    around: Around | None = None,
    roots: Roots | None = None,
    offload: OffloadStore | None = None,
    trial: Trial | None = None,
    lanes: Lanes | None = None,
) -> None:
    """Run the tasks in order. `gradients` is needed for backwards, `links` where the model has other ranks.

    `around` surrounds the work of each operation, without the waiting for its input. `roots` is asked once before a backward.
    `offload` is needed where activations go to the host. `trial` says that the first operations may not count. With `lanes` a
    backward and the forward that follows it run in turns; only where the model has no other ranks.
    """
    if links is not None:
        links.begin(plan.incoming)
    _Step(plan, forward, gradients, links, around or (lambda _: nullcontext()), roots or (lambda _: ()), offload, lanes).run(
        trial
    )
    if gradients is not None:
        # Before the last messages have arrived: other ranks still work on them.
        gradients.compute_postponed()
    if links is not None:
        links.end()


class _Step:
    """A step on its way."""

    def __init__(
        self,
        plan: RankPlan,
        forward: Forward,
        gradients: Gradients | None,
        links: Links | None,
        around: Around,
        roots: Roots,
        offload: OffloadStore | None,
        lanes: Lanes | None,
    ) -> None:
        self._lanes = lanes
        self._plan, self._forward, self._gradients, self._links = plan, forward, gradients, links
        self._around, self._roots, self._offload = around, roots, offload
        self._alive: dict[Op, tuple[Tensor | None, Tensor | GradientEdge]] = {}
        self._own: dict[Message, Tensor] = {}
        """Messages from one chunk of this rank to another."""

    def run(self, trial: Trial | None) -> None:
        tasks = self._plan.tasks
        if trial is not None:
            self._run_all(tasks[: trial.pause.at])
            if trial.counts():
                tasks = tasks[trial.pause.at :]
            else:
                self._forget(trial.pause)
        self._run_all(tasks)
        assert not self._alive, f"forwards without backward: {list(self._alive)}"
        assert self._offload is None or self._offload.is_empty, "activations are left on the host"

    def _forget(self, pause: Pause) -> None:
        self._alive.clear()
        self._own.clear()
        if self._offload is not None:
            self._offload.forget()
        if self._links is not None:
            self._links.restart(pause.sent)

    def _run_all(self, tasks: Sequence[Task]) -> None:
        if self._lanes is not None:
            self._run_in_turns(deque(tasks), self._lanes)
            return
        for task in tasks:
            for chunk in task.gathers:
                if self._gradients is not None:
                    self._gradients.gather_ahead(chunk)
            made = self._run(task)
            for chunk in task.reduces:
                if self._gradients is not None:
                    self._gradients.release(chunk)
            if made is not None and task.makes is not None:
                self._pass_on(made, task)

    def _run_in_turns(self, tasks: deque[Task], lanes: Lanes) -> None:
        while tasks:
            task = tasks.popleft()
            if task.op.kind == "B" and tasks and tasks[0].op.kind == "F":
                lanes.beside(partial(self._run, task), partial(self._run, tasks.popleft()))
            else:
                self._run(task)

    def _pass_on(self, made: Tensor, task: Task) -> None:
        assert task.makes is not None
        if task.target is None:
            self._own[task.makes] = made
        else:
            assert self._links is not None
            self._links.give(made, task.target)

    def _run(self, task: Task) -> Tensor | None:
        if task.op.kind in ("O", "R"):
            self._move(task.op)
            return None
        given = self._take(task)
        with self._around(task.op):
            if task.op.kind == "F":
                return self._run_forward(task, given)
            assert self._gradients is not None
            with nullcontext() if task.is_last else self._gradients.no_sync():
                if task.op.kind == "B":
                    return self._run_backward(task, given, self._gradients)
                self._gradients.compute_deferred(_unit(task.op))
        return None

    def _take(self, task: Task) -> Tensor | None:
        if task.needs is None:
            return None
        if task.source is None:
            return self._own.pop(task.needs)
        assert self._links is not None
        return self._links.take(task.needs, task.source)

    def _run_forward(self, task: Task, hidden: Tensor | None) -> Tensor:
        trains = torch.is_grad_enabled()
        if hidden is not None:
            hidden.requires_grad_(trains)
        with self._keeping(task, hidden):
            made = self._forward(task.op, hidden)
        if trains:
            is_edge = task.makes is not None and made.requires_grad
            self._alive[_unit(task.op)] = hidden, get_gradient_edge(made) if is_edge else made
        return made.detach()

    def _run_backward(self, task: Task, gradient: Tensor | None, gradients: Gradients) -> Tensor | None:
        unit = _unit(task.op)
        hidden, made = self._alive.pop(unit)
        starts: list[Any] = [made]
        entering = [gradient]
        for edge, owed in self._roots(unit):
            starts.append(edge)
            entering.append(owed)
        # A first stage of frozen weights, which nobody differentiates: the gradient that arrives ends here.
        ends_here = isinstance(made, Tensor) and not made.requires_grad
        with gradients.deferring(unit) if self._plan.splits_backward else nullcontext():
            if not ends_here:
                torch.autograd.backward(starts, entering)
        if task.is_offloaded:
            assert self._offload is not None
            self._offload.end(unit)
        return None if hidden is None else hidden.grad

    def _keeping(self, task: Task, hidden: Tensor | None) -> AbstractContextManager[None]:
        if not task.is_offloaded:
            return nullcontext()
        assert self._offload is not None
        return self._offload.keeping(_unit(task.op), hidden)

    def _move(self, op: Op) -> None:
        assert self._offload is not None
        if op.kind == "O":
            self._offload.free(_unit(op))
        else:
            self._offload.load(_unit(op))


def _unit(op: Op) -> Op:
    """Return the name under which forward, backward and weight gradient of a microbatch on a chunk know each other."""
    return Op("F", op.microbatch, op.chunk, op.slice)
