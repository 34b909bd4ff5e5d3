"""Shape and dtype of the hidden states that a pipeline stage takes and passes on."""

import torch

from primus.engine.config.model import ModelConfig
from primus.engine.parallel.mesh import Mesh

__all__ = ["hidden_shape", "residual_dtype"]


def hidden_shape(config: ModelConfig, mesh: Mesh, micro_batch_size: int) -> tuple[int, int, int]:
    """Return this rank's [s, b, h] of a sequence, or of a slice of it where sequences pass the stages in slices.

    Ranks that share a sequence hold a part each: `cp`, and `tp` under sequence parallelism.
    """
    sharers = mesh.cp.size * (mesh.tp.size if config.parallel.sequence_parallel else 1)
    return config.seq_length // (config.pipeline.num_slices * sharers), micro_batch_size, config.hidden_size


def residual_dtype(config: ModelConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the hidden states between layers, for parameters of `dtype`."""
    return torch.promote_types(dtype, torch.float32) if config.fp32_residual_connection else dtype
