"""Rotary position embedding (RoFormer, arXiv 2104.09864): frequencies, their scalings, tables, and the rotation.

Frequencies f_j = base^(-2j/D), j < D/2, in fp32. Tables are cos and sin of p * f_j, [S, D/2]; both layouts share them:
halves rotates channel j with j + D/2, interleaved rotates 2j with 2j + 1. Channels beyond D pass through.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = [
    "apply_rotary",
    "apply_rotary_reference",
    "llama3_frequencies",
    "rotary_frequencies",
    "rotary_tables",
    "yarn_concentration",
    "yarn_correction_range",
    "yarn_frequencies",
    "yarn_mscale",
]


def rotary_frequencies(channels: int, base: float) -> Tensor:
    """Return the D/2 frequencies of `channels` = D rotated channels, fp32."""
    return 1.0 / base ** (torch.arange(0, channels, 2, dtype=torch.float32) / channels)


def llama3_frequencies(
    frequencies: Tensor, factor: float, *, context: int = 8192, low: float = 1.0, high: float = 4.0
) -> Tensor:
    """Scale frequencies as Llama 3.1 does: long waves divided by `factor`, short ones kept, a linear blend between."""
    waves = 2.0 * math.pi / frequencies
    blend = ((context / waves - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / factor + blend * frequencies


def yarn_correction_range(
    channels: int, base: float, context: int, beta_fast: float, beta_slow: float, *, round_to_int: bool
) -> tuple[float, float]:
    """Return the channels between which YaRN blends: those that turn `beta_fast` and `beta_slow` times in the old context."""

    def channel(turns: float) -> float:
        return channels * math.log(context / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

    low, high = channel(beta_fast), channel(beta_slow)
    if round_to_int:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, channels - 1)


def yarn_frequencies(frequencies: Tensor, factor: float, low: float, high: float) -> Tensor:
    """Interpolate slow frequencies by `factor` (YaRN, arXiv 2309.00071), with a linear ramp between channels low and high."""
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(len(frequencies), dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return frequencies / factor * ramp + frequencies * (1.0 - ramp)


def yarn_concentration(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """Return the number by which YaRN multiplies cos and sin."""
    if mscale is None or mscale_all_dim is None:
        return yarn_mscale(factor, 1.0)
    return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)


def yarn_mscale(factor: float, weight: float) -> float:
    """Return 0.1 weight ln(factor) + 1, or 1 without extension."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def rotary_tables(frequencies: Tensor, positions: Tensor, *, multiplier: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin of positions x frequencies, [S, D/2], times `multiplier`; angles are fp32."""
    angles = positions.to(torch.float32)[:, None] * frequencies.to(positions.device)
    return (angles.cos() * multiplier).to(dtype), (angles.sin() * multiplier).to(dtype)


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate the first D channels of x, [S, ..., D or more], by the tables [S, D/2]; the result is contiguous."""
    out: Tensor = _Rotation.apply(x, cos, sin, interleaved)
    return out


def apply_rotary_reference(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Rotate by the formula x cos + rot(x) sin."""
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        rotated = torch.stack((-turned[..., 1::2], turned[..., 0::2]), dim=-1).flatten(-2)
    else:
        cos, sin = cos.repeat(1, 2), sin.repeat(1, 2)
        rotated = torch.cat((-turned[..., width // 2 :], turned[..., : width // 2]), dim=-1)
    shape = (x.shape[0],) + (1,) * (x.dim() - 2) + (width,)
    return torch.cat((turned * cos.view(shape) + rotated * sin.view(shape), rest), dim=-1)


class _Rotation(torch.autograd.Function):
    """A rotation's gradient is the rotation back; nothing of x is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return _rotate(x, cos, sin, interleaved, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(dy, cos, sin, ctx.interleaved, -1), None, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, sign: int) -> Tensor:
    """Rotate forth or back, whole rows of channels at a time: loops over half or strided heads are up to ten times slower."""
    half = cos.shape[-1]
    turned = x[..., : 2 * half].contiguous()
    rotated = _rotate_pairs(turned, cos, sin, sign) if interleaved else _rotate_halves(turned, cos, sin, sign)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), dim=-1)


def _rotate_halves(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    shape = _broadcast(x, x.shape[-1])
    cos = torch.cat((cos, cos), dim=-1).view(shape)
    sin = torch.cat((sin * -sign, sin * sign), dim=-1).view(shape)
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)


def _rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """Neighbouring channels are one complex number; half precision, which has no complex arithmetic, goes by fp32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    turn = torch.complex(cos.to(wide), sin.to(wide) * sign).view(_broadcast(x, cos.shape[-1]))
    return torch.view_as_real(torch.view_as_complex(x.to(wide).unflatten(-1, (-1, 2))) * turn).flatten(-2).to(x.dtype)


def _broadcast(x: Tensor, width: int) -> tuple[int, ...]:
    return (x.shape[0],) + (1,) * (x.dim() - 2) + (width,)
