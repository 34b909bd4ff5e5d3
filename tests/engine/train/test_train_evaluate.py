"""An evaluation is one mean over the tokens of all its microbatches, and no number without any."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch

from primus.engine.parallel.mesh import single_mesh
from primus.engine.train.evaluate import evaluate
from primus.engine.train.stages import Stages
from primus.errors import RunError


class _Stages:
    """Has sums of losses, and the tokens in them, in place of a model."""

    def __init__(self, sums: Sequence[tuple[float, float]]) -> None:
        self._sums = sums

    def evaluate(self, _batches: Any, num_microbatches: int, on_loss: Any) -> None:
        for total, count in self._sums[:num_microbatches]:
            on_loss(torch.tensor(total), torch.tensor(count), torch.tensor(count), ())


def mean_of(*sums: tuple[float, float]) -> float:
    return evaluate(cast(Stages, _Stages(sums)), iter(()), num_microbatches=len(sums), mesh=single_mesh())


def test_microbatches_weigh_what_they_have_tokens() -> None:
    assert mean_of((12.0, 4.0), (0.0, 0.0), (2.0, 1.0)) == 14 / 5


def test_without_a_token_there_is_no_loss() -> None:
    with pytest.raises(RunError, match="no token with a loss: look at the validation data"):
        mean_of((0.0, 0.0))
    with pytest.raises(RunError, match="no microbatch"):
        mean_of()
