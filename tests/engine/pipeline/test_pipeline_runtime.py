"""The one-stage table and its execution."""

import torch
from torch import Tensor

from primus.engine.pipeline.runtime import execute
from primus.engine.pipeline.schedules import one_stage


def test_one_stage_keeps_one_microbatch_alive() -> None:
    assert [(op.kind, op.microbatch) for op in one_stage(2)] == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]


def test_only_the_last_backward_is_told_so() -> None:
    seen: list[tuple[float, bool]] = []

    def backward(loss: Tensor, is_last: bool) -> None:
        seen.append((float(loss), is_last))

    execute(one_stage(3), forward=lambda m: torch.tensor(float(m)), backward=backward)
    assert seen == [(0.0, False), (1.0, False), (2.0, True)]
