"""`warm_up` runs every chunk of this rank once on made-up input, so that kernels and memory are there before the first step."""

import torch
from torch import Tensor

from primus.engine.checkpoint.rng import capture_rng, restore_rng
from primus.engine.config import ConfigContainer
from primus.engine.model.gpt import GPTModel
from primus.engine.model.hidden import hidden_shape, residual_dtype
from primus.engine.model.moe.router import Router
from primus.engine.parallel.data_parallel import DataParallel
from primus.engine.parallel.mesh import Mesh
from primus.engine.parallel.random import RandomStreams
from primus.engine.precision import dtype_of
from primus.engine.train.stages import Stages

__all__ = ["warm_up"]


def warm_up(stages: Stages, buffers: DataParallel, config: ConfigContainer, mesh: Mesh, streams: RandomStreams) -> None:
    """Run a forward and a backward of each chunk, without transfers between stages; nothing of the run's state changes."""
    states = capture_rng(streams, mesh.device)
    buffers.zero_grad()
    for chunk in stages.chunks:
        chunk.train()
        with buffers.no_sync():
            _once(chunk, config, mesh)
        for module in chunk.modules():
            if isinstance(module, Router):
                module.forget()
    buffers.zero_grad()
    restore_rng(states, streams, mesh.device)


def _once(chunk: GPTModel, config: ConfigContainer, mesh: Mesh) -> None:
    model, device = config.model, mesh.device
    B, S = config.train.micro_batch_size, model.seq_length // (mesh.cp.size * model.pipeline.num_slices)
    # Random ids, not zeros: whatever chooses by content should see all kinds of it.
    tokens, labels = torch.randint(model.vocab_size or 1, (2, B, S), device=device)
    positions = torch.arange(S, device=device).expand(B, S)
    hidden: Tensor | None = None
    if chunk.embedding is None:
        dtype = residual_dtype(model, dtype_of(config.mixed_precision.params_dtype))
        hidden = torch.randn(hidden_shape(model, mesh, B), dtype=dtype, device=device).requires_grad_()
    made: Tensor = chunk(tokens, positions, None, labels, torch.ones(B, S, device=device), hidden_SBH=hidden)
    if made.requires_grad:  # not where all is frozen, from the embedding on
        made.backward(None if made.dim() == 0 else torch.zeros_like(made))
