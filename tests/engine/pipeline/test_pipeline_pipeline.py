"""What a pipeline does around a step, without other ranks."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
import torch

from primus.engine.config.pipeline import PipelineConfig
from primus.engine.parallel.mesh import single_mesh
from primus.engine.pipeline.adaptive import Adaptive
from primus.engine.pipeline.pipeline import Pipeline
from primus.engine.pipeline.recorder import Recorder


@pytest.mark.parametrize(("dump_times", "timed"), [(False, [0, 1, 1, 0]), (True, [1, 1, 1, 1])])
def test_the_device_is_waited_for_in_steps_whose_times_are_asked_for(dump_times: bool, timed: list[int]) -> None:
    """At the start of a timed step of two microbatches, and after each forward, input gradient and weight gradient."""
    config = replace(PipelineConfig(algorithm="zero-bubble-heuristic", timed_steps=(2, 3)), dump_times=dump_times)
    waits: list[int] = []
    mesh = single_mesh()
    pipeline = Pipeline(
        config, mesh, recorder=Recorder(lambda: waits.append(1)), adaptive=Adaptive(config, mesh, weights=set())
    )
    weight = torch.ones((), requires_grad=True)
    counts = []
    for _ in range(4):
        pipeline.train(2, lambda op, hidden: weight * 2, MagicMock(), lambda op: nullcontext())
        counts.append(len(waits))
        waits.clear()
    assert counts == [7 * each for each in timed]
