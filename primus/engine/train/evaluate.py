"""`evaluate` runs batches without gradients and returns one token-weighted mean over microbatches, batches and ranks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from primus.engine.data.loader import Batch
from primus.engine.parallel.collectives import all_reduce_
from primus.engine.parallel.mesh import Mesh
from primus.engine.train.stages import Stages
from primus.errors import RunError

__all__ = ["evaluate"]


def evaluate(stages: Stages, batches: Iterator[Batch], *, num_microbatches: int, mesh: Mesh) -> float:
    """Return sum(loss)/sum(tokens) over `num_microbatches` microbatches of each data-parallel rank.

    Raises RunError if no token counts: an evaluation that silently reports nothing is worse than a stop.
    """
    if num_microbatches == 0:
        raise RunError("evaluation asked for no microbatch at all")
    sums = torch.zeros(2, dtype=torch.float64, device=mesh.device)

    def on_loss(total: Tensor, count: Tensor, *_: object) -> Tensor:
        sums.add_(torch.stack((total, count)))
        return total

    with torch.no_grad():
        stages.evaluate(batches, num_microbatches, on_loss)
    for group in (mesh.dp_cp, mesh.pp):
        all_reduce_(sums, group)
    loss, tokens = sums.tolist()
    if tokens == 0:
        raise RunError(
            "evaluation met no token with a loss: look at the validation data; eod_mask_loss takes tokens out, and rows that "
            "are cut to seq_length may lose their answer"
        )
    return float(loss / tokens)
