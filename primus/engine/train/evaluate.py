"""`evaluate` runs batches without gradients and returns one token-weighted mean over microbatches, batches and ranks."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from primus.engine.data.loader import Batch
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Group
from primus.engine.train.step import loss_and_count
from primus.errors import RunError

__all__ = ["evaluate"]


def evaluate(model: nn.Module, batches: Iterator[Batch], *, num_microbatches: int, group: Group) -> float:
    """Return sum(loss)/sum(tokens) over `num_microbatches` microbatches of each rank in `group`.

    Raises RunError if no token counts: an evaluation that silently reports nothing is worse than a stop.
    """
    training = model.training
    model.eval()
    sums: Tensor | None = None
    with torch.no_grad():
        for _ in range(num_microbatches):
            part = torch.stack(loss_and_count(model, next(batches))).double()
            sums = part if sums is None else sums + part
    model.train(training)
    if sums is None:
        raise RunError("evaluation asked for no microbatch at all")
    all_reduce_(sums, group)
    total, count = sums.tolist()
    if count == 0:
        raise RunError("evaluation met no token with a loss; check eod_mask_loss and the validation data")
    return float(total / count)
