"""What measured stages make of a schedule."""

import pytest
import torch

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.parallel.mesh import single_mesh
from primus.engine.pipeline import adaptive
from primus.engine.pipeline.adaptive import Adaptive, Measured, adapted
from primus.engine.pipeline.recorder import Recorder
from primus.engine.pipeline.schedules import Op

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


@pytest.mark.parametrize(("percentile", "room"), [(50, 500.0 - 300.0), (90, 900.0 - 300.0)])
def test_the_limit_percentile_says_how_full_memory_may_be(
    percentile: int, room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`zero_bubble_adaptive_memory_limit_percentile` of 1000 bytes, 300 of which are no activations."""
    monkeypatch.setattr(adaptive, "total_bytes", lambda device: 1000)
    monkeypatch.setattr(adaptive, "peak_bytes", lambda device: 700)
    config = PipelineConfig(algorithm="zero-bubble-heuristic", timed_steps=(1, 1), memory_percentile=percentile)
    measuring = Adaptive(config, single_mesh(), set())
    for microbatch, numbers in enumerate((25, 50)):  # keep 100 and 200 bytes; the first counts
        with measuring.around(Op("F", microbatch)):
            torch.ones(numbers, requires_grad=True).exp()
    recorder = Recorder(lambda: None)
    recorder.events = [(Op("F", 0), 0.0, 2.0), (Op("F", 1), 2.0, 6.0)]
    new = measuring.after_step(recorder, alive=4)
    assert new is not None
    assert new.max_memory == (pytest.approx(room / 100),)
    assert new.cost_forward == (3.0,)
