"""Depthwise causal convolution: each channel is a weighted sum of its newest tokens.

y_t = bias + sum_k weight_k x_{t - K + 1 + k}, with zeros before the sequence. Few taps, so a sum of shifted products in the
layout of the activations; nothing is kept but x.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.kernels.segments import Mask, sample_by_sample
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.parallel.sharding import Sharding

__all__ = ["CausalConvolution", "causal_convolution"]


def causal_convolution(x_SBF: Tensor, weight_F1K: Tensor, bias_F: Tensor | None) -> Tensor:
    """Convolve along the sequence [S, B, F]; `weight` is [F, 1, K] as torch's Conv1d has it."""
    length, taps = len(x_SBF), weight_F1K.shape[-1]
    padded = F.pad(x_SBF, (0, 0, 0, 0, taps - 1, 0))
    y = padded[:length] * weight_F1K[:, 0, 0]
    if bias_F is not None:
        y = y + bias_F
    for k in range(1, taps):
        y = y + padded[k : k + length] * weight_F1K[:, 0, k]
    return y


class CausalConvolution(nn.Module):
    """The convolution with its parameters, whose channels are divided in `blocks`."""

    def __init__(self, place: Place, blocks: tuple[int, ...], width: int, *, bias: bool) -> None:
        super().__init__()
        sharding = Sharding(dim=0, blocks=blocks)
        # Kaiming-uniform with a = sqrt(5) and the usual bias of convolutions: both within 1 / sqrt(taps).
        initial = _uniform(1.0 / math.sqrt(width))
        self.weight = declare(place, (sum(blocks), 1, width), sharding, initial)
        self.bias = declare(place, (sum(blocks),), sharding, initial) if bias else None

    def forward(self, x_SBF: Tensor, mask: Mask = None) -> Tensor:
        return sample_by_sample(mask, lambda x: causal_convolution(x, self.weight, self.bias), x_SBF)


def _uniform(bound: float) -> Initial:
    def fill(whole: Tensor, generator: torch.Generator) -> None:
        whole.uniform_(-bound, bound, generator=generator)

    return fill
