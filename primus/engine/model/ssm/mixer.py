"""The Mamba-2 mixer (arXiv 2405.21060): what takes the place of attention in a state-space layer.

[z | x | b | c | dt] = u W_in
[x | b | c] = silu(convolution of them),  dt = softplus(dt + dt_bias),  A = -exp(A_log)
y = scan(x, dt, A, b, c) + D x
out = RMSNorm over each group of (y silu(z)), times W_out

Tensor-parallel ranks divide heads and groups: a rank has its groups' heads, so scan and norm need no communication.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.config.ssm import MambaConfig
from primus.engine.kernels.norm import l2_norm
from primus.engine.kernels.segments import Mask, sample_by_sample
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.parameter import Place, constant, declare
from primus.engine.model.ssm.conv import CausalConvolution
from primus.engine.model.ssm.scan import selective_scan
from primus.engine.parallel.sharding import Sharding

__all__ = ["GroupNorm", "MambaMixer"]

_EPS = 1e-5
_FIRST_STEP = (1e-3, 1e-1)
_LEAST_STEP = 1e-4


class GroupNorm(nn.Module):
    """RMSNorm over each of equal groups of channels; ranks divide the groups."""

    def __init__(self, place: Place, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups // place.tp.size
        self.weight = declare(place, (width,), Sharding(dim=0), constant(1.0))

    def forward(self, x_SBF: Tensor) -> Tensor:
        normed = l2_norm(x_SBF.unflatten(-1, (self.groups, -1)), _EPS).flatten(-2)
        return (normed * self.weight).to(self.weight.dtype)


class MambaMixer(nn.Module):
    """Takes and returns [S, B, H]; the output has no bias."""

    def __init__(
        self, place: Place, config: MambaConfig, *, in_proj: ColumnParallelLinear, out_proj: RowParallelLinear
    ) -> None:
        super().__init__()
        heads, by_head = config.num_heads, Sharding(dim=0)
        self.in_proj, self.out_proj = in_proj, out_proj
        self.conv1d = CausalConvolution(place, config.blocks[1:4], config.conv_width, bias=True)
        self.A_log = declare(place, (heads,), by_head, log_decay)
        self.D = declare(place, (heads,), by_head, constant(1.0))
        self.dt_bias = declare(place, (heads,), by_head, step_bias)
        self.norm = GroupNorm(place, config.width, config.num_groups)
        self._blocks = [size // place.tp.size for size in config.blocks]
        self._head_dim, self._state_dim = config.head_dim, config.state_dim

    def forward(self, u_SBH: Tensor, mask: Mask = None) -> tuple[Tensor, Tensor | None]:
        gate, xbc, dt = self.in_proj(u_SBH).split([self._blocks[0], sum(self._blocks[1:4]), self._blocks[4]], dim=-1)
        x, b, c = F.silu(self.conv1d(xbc, mask)).split(self._blocks[1:4], dim=-1)
        x_SBND = x.unflatten(-1, (-1, self._head_dim))
        b_SBGZ, c_SBGZ = (m.unflatten(-1, (-1, self._state_dim)) for m in (b, c))
        # Steps and decays in fp32 at least: their sums over a chunk stand in exponents.
        wide = torch.promote_types(dt.dtype, torch.float32)
        dt = F.softplus(dt.to(wide) + self.dt_bias.to(wide))
        decay = -torch.exp(self.A_log.to(wide))
        y = sample_by_sample(mask, lambda x, dt, b, c: selective_scan(x, dt, decay, b, c), x_SBND, dt, b_SBGZ, c_SBGZ)
        y = (y + self.D.to(wide)[:, None] * x_SBND).flatten(-2)
        out: tuple[Tensor, Tensor | None] = self.out_proj(self.norm(y * F.silu(gate.to(wide))))
        return out


def log_decay(whole: Tensor, generator: torch.Generator) -> None:
    """A ~ U(1, 16)."""
    whole.uniform_(1.0, 16.0, generator=generator).log_()


def step_bias(whole: Tensor, generator: torch.Generator) -> None:
    """Steps are drawn evenly on a logarithmic scale; the bias is what softplus makes them of."""
    low, high = map(math.log, _FIRST_STEP)
    step = whole.uniform_(low, high, generator=generator).exp_().clamp_(min=_LEAST_STEP)
    whole.copy_(step + torch.log(-torch.expm1(-step)))
