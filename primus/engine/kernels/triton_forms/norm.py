"""RMSNorm, a row a program; statistics and products in at least fp32, like `kernels.norm`.

The backward's programs each walk over many rows and leave one partial gradient of the gain, which are then summed: no atomics,
so that a run repeats to the bit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from primus.engine.kernels.triton_forms.wide import wide_type

__all__ = ["rms_norm"]

_PROGRAMS = 512
"""Programs of the backward, which is the height of the partial gradients."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * (offset + weight) over the last dim, in the weight's dtype."""
    out: Tensor = _RMSNorm.apply(x, weight, eps, offset)
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        wide, width = torch.promote_types(x.dtype, torch.float32), rows.shape[1]
        y = torch.empty_like(rows, dtype=weight.dtype)
        scale = torch.empty(len(rows), dtype=wide, device=x.device)
        if len(rows):
            _forward[(len(rows),)](
                rows, weight, y, scale, width, eps, offset, WIDE=wide_type(wide), BLOCK=triton.next_power_of_2(width)
            )
        ctx.save_for_backward(rows, weight, scale)
        ctx.offset, ctx.shape = offset, x.shape
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, weight, scale = ctx.saved_tensors
        height, width = rows.shape
        programs = min(height, _PROGRAMS)
        dx = torch.empty_like(rows)
        partial = torch.zeros(programs, width, dtype=scale.dtype, device=rows.device)
        if height:
            _backward[(programs,)](
                dy.reshape(rows.shape).contiguous(),
                rows,
                weight,
                scale,
                dx,
                partial,
                height,
                width,
                ctx.offset,
                WIDE=wide_type(scale.dtype),
                BLOCK=triton.next_power_of_2(width),
            )
        return dx.view(ctx.shape), partial.sum(0).to(weight.dtype), None, None


@triton.jit
def _forward(
    x, weight, y, scale, width, eps: tl.constexpr, offset: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(WIDE)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(WIDE) + offset
    r = 1.0 / tl.sqrt(tl.sum(values * values, 0) / width + eps)
    tl.store(y + row * width + columns, values * r * gain, mask=inside)
    tl.store(scale + row, r)


@triton.jit
def _backward(
    dy, x, weight, scale, dx, partial, height, width, offset: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    first, programs = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(WIDE) + offset
    d_gain = tl.zeros((BLOCK,), dtype=WIDE)
    for number in range(first, height, programs):
        at = tl.cast(number, tl.int64) * width + columns
        values = tl.load(x + at, mask=inside, other=0.0).to(WIDE)
        slope = tl.load(dy + at, mask=inside, other=0.0).to(WIDE)
        r = tl.load(scale + number)
        d_gain += slope * values * r
        pulled = slope * gain
        pull = tl.sum(pulled * values, 0) / width
        tl.store(dx + at, r * pulled - values * (r * r * r * pull), mask=inside)
    tl.store(partial + tl.cast(first, tl.int64) * width + columns, d_gain, mask=inside)
