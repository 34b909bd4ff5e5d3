"""Plans of a rank, and their execution without other ranks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

from primus.engine.config.pipeline import ALGORITHMS, Algorithm
from primus.engine.pipeline.runtime import execute
from primus.engine.pipeline.schedules import Op, build_schedule, forwards, rank_plan, simulate


class Recorder:
    """Notes which backwards are told that others follow."""

    def __init__(self) -> None:
        self.syncs = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.syncs = False
        yield
        self.syncs = True

    def deferring(self, key: Op) -> AbstractContextManager[None]:
        return nullcontext()

    def compute_deferred(self, key: Op) -> None:
        raise AssertionError("no schedule of one stage defers")

    def compute_postponed(self) -> None:
        assert self.syncs

    def release(self, chunk: int) -> None:
        pass

    def gather_ahead(self, chunk: int) -> None:
        pass


def test_alone_each_microbatch_goes_forward_and_backward_and_the_last_is_told_so() -> None:
    weight = torch.ones((), requires_grad=True)
    recorder, seen = Recorder(), list[tuple[float, bool]]()
    weight.register_hook(lambda grad: seen.append((float(grad), recorder.syncs)))

    def forward(op: Op, hidden: Tensor | None) -> Tensor:
        assert hidden is None
        assert len(seen) == op.microbatch
        return weight * op.microbatch

    execute(rank_plan(build_schedule("1f1b", 1, 3), 0), forward=forward, gradients=recorder, links=None)
    assert seen == [(0.0, False), (1.0, False), (2.0, True)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_one_rank_sends_another_receives_in_the_same_order(algorithm: Algorithm) -> None:
    schedule = build_schedule(algorithm, 4, 8)
    plans = [rank_plan(schedule, rank) for rank in range(4)]
    for receiver, plan in enumerate(plans):
        for sender, messages in plan.incoming.items():
            assert messages == tuple(task.makes for task in plans[sender].tasks if task.target == receiver)
        received = [task.needs for task in plan.tasks if task.source is not None]
        assert sorted(map(str, received)) == sorted(str(m) for messages in plan.incoming.values() for m in messages)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_evaluation_runs_every_chunk_once_in_an_order_that_ends(algorithm: Algorithm) -> None:
    trained = build_schedule(algorithm, 3, 6)
    schedule = forwards(trained.placement, 3, trained.num_chunks, 7)
    waiting = [list(row) for row in schedule.rows]
    finished: set[tuple[int, int]] = set()
    while any(waiting):
        moved = False
        for rank, row in enumerate(waiting):
            while row and (stage := schedule.stage(rank, row[0].chunk)) >= 0:
                if stage and (stage - 1, row[0].microbatch) not in finished:
                    break
                finished.add((stage, row.pop(0).microbatch))
                moved = True
        assert moved, "the evaluation deadlocks"
    assert finished == {(stage, m) for stage in range(schedule.num_stages) for m in range(7)}


@pytest.mark.parametrize(("algorithm", "num_chunks"), [("1f1b-interleaved", 4), ("1f1b", 1)])
def test_stages_reduce_and_gather_a_chunk_at_one_time(algorithm: Algorithm, num_chunks: int) -> None:
    schedule = build_schedule(algorithm, 4, 8, num_chunks=num_chunks)
    due: dict[str, dict[int, set[float]]] = {"reduce": {}, "gather": {}}
    for rank, times in enumerate(simulate(schedule).times):
        for task, (start, end) in zip(rank_plan(schedule, rank).tasks, times, strict=True):
            for chunk in task.reduces:
                due["reduce"].setdefault(chunk, set()).add(end)
            for chunk in task.gathers:
                due["gather"].setdefault(chunk, set()).add(start)
    assert all(len(times) == 1 for what in due.values() for times in what.values())
    assert sorted(due["reduce"]) == list(range(num_chunks))
    assert sorted(due["gather"]) == list(range(2, num_chunks))  # the first two are gathered right after the update
