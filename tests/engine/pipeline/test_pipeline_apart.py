"""Weight gradients behind input gradients: a shorter bubble for the same memory; who splits backwards says so beforehand."""

import pytest

from primus.engine.config.pipeline import ALGORITHMS, WHOLE_BACKWARDS, Algorithm, PipelineConfig
from primus.engine.pipeline.schedules import Costs, build_schedule, schedule_of, simulate


def config(algorithm: Algorithm, **keys: bool) -> PipelineConfig:
    return PipelineConfig(algorithm=algorithm, num_chunks=build_schedule(algorithm, 2, 4).num_chunks, **keys)


@pytest.mark.parametrize("delays", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_configuration_knows_who_splits_backwards(algorithm: Algorithm, delays: bool) -> None:
    pipeline = config(algorithm, delay_weight_gradients=delays)
    assert pipeline.splits_backward == schedule_of(pipeline, 2, 4).splits_backward


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("algorithm", WHOLE_BACKWARDS)
def test_input_gradients_alone_are_waited_for(algorithm: Algorithm, ranks: int, microbatches: int) -> None:
    whole, apart = (
        simulate(schedule_of(config(algorithm, delay_weight_gradients=delays), ranks, microbatches), Costs(weight_grad=0.5))
        for delays in (False, True)
    )
    assert apart.busy == whole.busy
    assert apart.peaks == whole.peaks
    if algorithm != "1f1b-v":
        assert (whole.makespan - whole.busy[0], apart.makespan - apart.busy[0]) == (2.5 * (ranks - 1), 2.0 * (ranks - 1))
    assert apart.makespan < whole.makespan
