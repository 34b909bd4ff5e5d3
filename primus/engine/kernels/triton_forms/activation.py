"""a = p g sigmoid(slope g) u for rows [gate, linear] and a weight a row, forward and backward in one pass each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from primus.engine.kernels.triton_forms.wide import wide_type
from primus.engine.kernels.weighted_activation import Results

__all__ = ["WeightedGate"]

_BLOCK = 1024


class WeightedGate:
    """The Triton form of `kernels.weighted_activation.WeightedGate`."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def forward(self, z_MF: Tensor, p_M: Tensor) -> Tensor:
        """Return the weighted activation [M, F] of z [M, 2F]."""
        width = z_MF.shape[1] // 2
        a_MF = z_MF.new_empty(len(z_MF), width)
        if len(z_MF):
            block = min(_BLOCK, triton.next_power_of_2(width))
            grid = (len(z_MF), triton.cdiv(width, block))
            _forward[grid](z_MF.contiguous(), p_M, a_MF, width, slope=self.slope, WIDE=_wide(z_MF), BLOCK=block)
        return a_MF

    def backward_(self, da_MF: Tensor, z_MF: Tensor, p_M: Tensor, results: Results) -> None:
        """Fill the gradients of z and p, and the weighted activation again; all lie in contiguous rows."""
        width = z_MF.shape[1] // 2
        if len(z_MF):
            block = min(_BLOCK, triton.next_power_of_2(width))
            _backward[(len(z_MF),)](
                da_MF.contiguous(),
                z_MF.contiguous(),
                p_M,
                *results,
                width,
                slope=self.slope,
                WIDE=_wide(z_MF),
                BLOCK=block,
            )


def _wide(z: Tensor) -> tl.dtype:
    return wide_type(torch.promote_types(z.dtype, torch.float32))


@triton.jit
def _forward(z, p, a, width, slope: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(z + row * 2 * width + columns, mask=inside, other=0.0).to(WIDE)
    linear = tl.load(z + row * 2 * width + width + columns, mask=inside, other=0.0).to(WIDE)
    weight = tl.load(p + row).to(WIDE)
    tl.store(a + row * width + columns, weight * gate / (1.0 + tl.exp(-slope * gate)) * linear, mask=inside)


@triton.jit
def _backward(da, z, p, dz, dp, a, width, slope: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(p + row).to(WIDE)
    d_weight = tl.zeros((BLOCK,), dtype=WIDE)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < width
        gate = tl.load(z + row * 2 * width + columns, mask=inside, other=0.0).to(WIDE)
        linear = tl.load(z + row * 2 * width + width + columns, mask=inside, other=0.0).to(WIDE)
        d_out = tl.load(da + row * width + columns, mask=inside, other=0.0).to(WIDE)
        s = 1.0 / (1.0 + tl.exp(-slope * gate))
        gated = gate * s
        d_weight += d_out * gated * linear
        d_plain = d_out * weight
        d_gate = d_plain * linear * (s + slope * gated * (1.0 - s))
        tl.store(a + row * width + columns, weight * gated * linear, mask=inside)
        tl.store(dz + row * 2 * width + columns, d_gate, mask=inside)
        tl.store(dz + row * 2 * width + width + columns, d_plain * gated, mask=inside)
    tl.store(dp + row, tl.sum(d_weight, 0))
