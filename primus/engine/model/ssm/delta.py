"""The gated delta net (arXiv 2412.06464): linear attention in the place of attention, or of a state-space mixer.

[q | k | v | z | b | a] = u W_in,  [q | k | v] = silu(convolution of them),  q and k of unit length
o = delta rule(q / sqrt(D), k, v) that keeps exp(-exp(A_log) softplus(a + dt_bias)) and writes sigmoid(b)
out = (norm of each head's o, times silu(z)) W_out

Tensor-parallel ranks divide heads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.config.delta import DeltaConfig
from primus.engine.kernels.segments import Mask, sample_by_sample
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.parameter import Place, declare
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice
from primus.engine.model.ssm.conv import CausalConvolution
from primus.engine.model.ssm.delta_rule import gated_delta_rule
from primus.engine.model.ssm.mixer import log_decay, step_bias
from primus.engine.parallel.sharding import Sharding

__all__ = ["GatedDeltaNet", "unit_heads"]

_EPS = 1e-6


class GatedDeltaNet(nn.Module):
    """Takes and returns [S, B, H]; of what attention is given it needs the packed samples besides."""

    def __init__(
        self,
        place: Place,
        config: DeltaConfig,
        *,
        in_proj: ColumnParallelLinear,
        out_norm: nn.Module,
        out_proj: RowParallelLinear,
    ) -> None:
        super().__init__()
        by_head = Sharding(dim=0)
        self.in_proj = in_proj
        self.conv1d = CausalConvolution(place, config.blocks[:3], config.conv_width, bias=False)
        self.A_log = declare(place, (config.num_value_heads,), by_head, log_decay)
        self.dt_bias = declare(place, (config.num_value_heads,), by_head, step_bias)
        self.out_norm, self.out_proj = out_norm, out_proj
        self._blocks = [size // place.tp.size for size in config.blocks]
        self._key_dim, self._value_dim = config.key_head_dim, config.value_head_dim
        self._sharers = config.num_value_heads // config.num_key_heads

    def forward(
        self, u_SBH: Tensor, tables: RotaryTables | None = None, mask: Mask = None, part: SequenceSlice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        qkv, gate, write, keep = self.in_proj(u_SBH).split([sum(self._blocks[:3]), *self._blocks[3:]], dim=-1)
        q, k, v = F.silu(self.conv1d(qkv, mask)).split(self._blocks[:3], dim=-1)
        q, k = (unit_heads(x, self._key_dim, self._sharers) for x in (q, k))
        # Its sums over a chunk stand in exponents.
        wide = torch.promote_types(keep.dtype, torch.float32)
        log = -torch.exp(self.A_log.to(wide)) * F.softplus(keep.to(wide) + self.dt_bias.to(wide))
        v_SBND = v.unflatten(-1, (-1, self._value_dim))
        heads = q * self._key_dim**-0.5, k, v_SBND, log, torch.sigmoid(write.to(wide))
        o = sample_by_sample(mask, gated_delta_rule, *heads)
        y = self.out_norm(o) * F.silu(gate.to(wide)).unflatten(-1, (-1, self._value_dim))
        out: tuple[Tensor, Tensor | None] = self.out_proj(y.flatten(-2).to(u_SBH.dtype))
        return out


def unit_heads(x: Tensor, channels: int, sharers: int) -> Tensor:
    """Return [S, B, F] as heads [S, B, N, D] of unit length and at least fp32, each for the value heads that share it."""
    x_SBGD = x.unflatten(-1, (-1, channels)).to(torch.promote_types(x.dtype, torch.float32))
    unit = x_SBGD * torch.rsqrt(x_SBGD.square().sum(-1, keepdim=True) + _EPS)
    shared: Tensor = unit.repeat_interleave(sharers, dim=2)
    return shared
