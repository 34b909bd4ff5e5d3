"""The spike rule."""

import logging
import math

import pytest

from primus.engine.optim.watch import SpikeWatch


def learned() -> SpikeWatch:
    watch = SpikeWatch()
    for value in [1.0] * 99 + [-2.0]:
        assert not watch.check("loss", value)
    return watch


def test_spikes_are_ten_times_the_largest_of_the_first_hundred() -> None:
    watch = learned()
    assert [watch.check("loss", value) for value in (19.9, 20.0, math.nan, 25.0, 19.0, -20.0)] == [
        False,
        True,
        False,
        True,
        False,
        True,
    ]


def test_the_threshold_is_frozen_and_survives_a_restart() -> None:
    first = learned()
    first.check("loss", 500.0)
    second = SpikeWatch()
    second.load_state_dict(first.state_dict())
    assert second.check("loss", 20.0)


def test_nothing_is_a_spike_while_learning_and_non_finite_values_do_not_count() -> None:
    watch = SpikeWatch(num_samples=2)
    assert [watch.check("grads", v) for v in (1.0, math.inf, math.nan, 1e9, 1e11)] == [False, False, False, False, True]


def test_contexts_do_not_share_a_threshold() -> None:
    watch = SpikeWatch(num_samples=1)
    watch.check("loss", 1.0)
    watch.check("grads", 100.0)
    assert watch.check("loss", 50.0)
    assert not watch.check("grads", 50.0)


def test_the_warning_names_context_value_and_place(caplog: pytest.LogCaptureFixture) -> None:
    watch = SpikeWatch(num_samples=1)
    watch.check("loss", 2.0)
    with caplog.at_level(logging.WARNING, logger="primus"):
        watch.check("loss", 40.0, "iteration 7")
    assert "loss 40 (iteration 7)" in caplog.text
