"""How a run ends: its own error is the one that shows, and every callback is told."""

import time

import pytest

from primus.engine.cause import _CAUGHT_AT
from primus.engine.checkpoint.state import TrainState
from primus.engine.config.batch import BatchPlan
from primus.engine.trace import Trace
from primus.engine.train.loop import Callback, Loop


class _Recorder(Callback):
    def __init__(self, events: list[str], *, fails_at: str = "") -> None:
        self._events, self._fails_at = events, fails_at

    def _note(self, event: str) -> None:
        self._events.append(event)
        if event == self._fails_at:
            raise RuntimeError(f"at {event}")

    def on_start(self, loop: Loop) -> None:
        self._note("start")

    def close(self, *, failed: bool) -> None:
        time.sleep(0.01)
        self._note("close failed" if failed else "close")


def loop_of(*callbacks: Callback) -> Loop:
    plan = BatchPlan(global_batch_size=1, micro_batch_size=1, data_parallel_size=1, rampup=None, round_down=False)
    return Loop(
        state=TrainState(),
        step=None,
        batches=iter(()),
        plan=plan,
        train_iters=0,
        skipped=frozenset(),
        flops_of=lambda _: 0.0,
        save=lambda: None,
        callbacks=callbacks,
        trace=Trace(),
    )


def test_a_good_end_closes_everybody() -> None:
    events: list[str] = []
    loop_of(_Recorder(events), _Recorder(events)).run()
    assert events == ["start", "start", "close", "close"]


def test_the_runs_own_error_shows_although_closing_fails_too() -> None:
    events: list[str] = []
    before = time.time()
    with pytest.raises(RuntimeError, match="at start") as raised:
        loop_of(_Recorder(events, fails_at="start"), _Recorder(events, fails_at="close failed")).run()
    assert events == ["start", "close failed", "close failed"]
    assert before <= getattr(raised.value, _CAUGHT_AT) <= time.time() - 0.02, "the time is that before anything was closed"


def test_an_error_of_closing_shows_where_the_run_had_none() -> None:
    events: list[str] = []
    with pytest.raises(RuntimeError, match="at close"):
        loop_of(_Recorder(events, fails_at="close"), _Recorder(events)).run()
    assert events == ["start", "start", "close", "close"]
