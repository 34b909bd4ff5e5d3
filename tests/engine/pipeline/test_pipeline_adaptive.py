"""What measured stages make of a schedule."""

import pytest

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.pipeline.adaptive import Measured, adapted

CONFIG = PipelineConfig(algorithm="zero-bubble-heuristic", timed_steps=(1, 2))
STAGES = [Measured((1.0, 2.0, 3.0), 10, 100.0), Measured((2.0, 2.0, 1.0), 20, 100.0), Measured((5.0, 9.0, 1.0), 10, 4.0)]


def test_costs_are_the_medians_of_all_stages() -> None:
    new = adapted(CONFIG, STAGES)
    assert (new.cost_forward, new.cost_input_grad, new.cost_weight_grad) == ((2.0,) * 3, (2.0,) * 3, (1.0,) * 3)


def test_memory_that_is_left_limits_each_rank_by_its_own_activations() -> None:
    assert adapted(CONFIG, STAGES).max_memory == (10.0, 5.0, 1.0)  # one microbatch always


@pytest.mark.parametrize(("pending", "limits"), [(3, (6.0, 3.0, 6.0)), (6, (12.0, 6.0, 12.0))])
def test_a_number_counts_microbatches_of_the_heavier_of_the_first_two_stages(pending: int, limits: tuple[float, ...]) -> None:
    config = PipelineConfig(algorithm="zero-bubble-heuristic", timed_steps=(1, 2), max_pending_backward=pending)
    assert adapted(config, STAGES).max_memory == limits
