"""Batch ramp-up against the values that Megatron's calculator gives."""

import pytest

from primus.engine.config.batch import BatchPlan


def plan(
    *, gbs: int, mbs: int = 1, dp: int = 1, rampup: tuple[int, int, int] | None = None, round_down: bool = False
) -> BatchPlan:
    return BatchPlan(micro_batch_size=mbs, global_batch_size=gbs, data_parallel_size=dp, rampup=rampup, round_down=round_down)


@pytest.mark.parametrize(
    ("consumed", "size", "microbatches"), [(0, 2, 1), (2, 2, 1), (4, 4, 2), (8, 6, 3), (14, 8, 4), (22, 8, 4)]
)
def test_ramp_grows_with_consumed_samples(consumed: int, size: int, microbatches: int) -> None:
    ramp = plan(gbs=8, dp=2, rampup=(2, 2, 12))
    assert (ramp.running(consumed), ramp.num_microbatches(consumed)) == (size, microbatches)


@pytest.mark.parametrize(("samples", "iterations"), [(5, 3), (12, 4), (40, 7), (41, 7), (100, 14)])
def test_iterations_of_a_sample_budget_follow_the_ramp(samples: int, iterations: int) -> None:
    assert plan(gbs=8, dp=2, rampup=(2, 2, 12)).iterations_for(samples) == iterations


def test_batch_is_rounded_down_when_allowed() -> None:
    rounded = plan(gbs=10, mbs=2, dp=3, round_down=True)
    assert (rounded.scheduled(0), rounded.running(0), rounded.num_microbatches(0)) == (10, 6, 1)


def test_samples_and_iterations_are_inverse_along_the_ramp() -> None:
    ramp = plan(gbs=8, rampup=(2, 2, 12))
    assert [ramp.samples_of(n) for n in range(7)] == [0, 2, 4, 8, 14, 22, 30]
    assert plan(gbs=8).samples_of(3) == 24
