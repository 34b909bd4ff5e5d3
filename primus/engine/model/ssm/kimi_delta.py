"""Kimi delta attention (arXiv 2510.26692): a gated delta net whose heads forget each channel at a rate of its own.

u = norm(x),  [q | k | v] = silu(convolution of u W_in),  q and k of unit length
w = gate_norm(x),  [f | g | b] = w W_down
o = delta rule(q / sqrt(D), k, v) that keeps exp(-exp(A_log) softplus(f W_decay + dt_bias)) and writes sigmoid(b)
out = (norm of each head's o, times sigmoid(g W_gate + bias)) W_out

Tensor-parallel ranks divide heads; W_down, which leads to few numbers, is whole on each of them, and under sequence parallelism
meets a slice of the sequence.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from primus.engine.config.delta import DeltaConfig
from primus.engine.kernels.segments import Mask, sample_by_sample
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear, enter_tensor_parallel
from primus.engine.model.mla import ReplicatedLinear
from primus.engine.model.parameter import Place, declare
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice
from primus.engine.model.ssm.conv import CausalConvolution
from primus.engine.model.ssm.delta import unit_heads
from primus.engine.model.ssm.kimi_rule import kimi_delta_rule
from primus.engine.model.ssm.mixer import log_decay, step_bias
from primus.engine.parallel.sharding import Sharding

__all__ = ["KimiDeltaAttention"]


class KimiDeltaAttention(nn.Module):
    """Takes x [S, B, H] before any norm, returns [S, B, H]; of what attention is given it needs the packed samples besides."""

    def __init__(
        self,
        place: Place,
        config: DeltaConfig,
        *,
        in_norm: nn.Module,
        in_proj: ColumnParallelLinear,
        gate_norm: nn.Module,
        gates_down_proj: ReplicatedLinear,
        decay_up_proj: ColumnParallelLinear,
        out_gate_up_proj: ColumnParallelLinear,
        out_norm: nn.Module,
        out_proj: RowParallelLinear,
    ) -> None:
        super().__init__()
        by_head = Sharding(dim=0)
        self.in_norm, self.in_proj = in_norm, in_proj
        self.conv1d = CausalConvolution(place, config.read, config.conv_width, bias=False)
        self.gate_norm, self.gates_down_proj = gate_norm, gates_down_proj
        self.decay_up_proj, self.out_gate_up_proj = decay_up_proj, out_gate_up_proj
        self.A_log = declare(place, (config.num_value_heads,), by_head, log_decay)
        self.dt_bias = declare(place, (config.decays,), by_head, step_bias)
        self.out_norm, self.out_proj = out_norm, out_proj
        self._read = [size // place.tp.size for size in config.read]
        self._down = config.gates_down
        self._key_dim, self._value_dim = config.key_head_dim, config.value_head_dim
        self._sharers = config.num_value_heads // config.num_key_heads
        self._tp, self._sequence_parallel = place.tp, place.sequence_parallel

    def forward(
        self, x_SBH: Tensor, tables: RotaryTables | None = None, mask: Mask = None, part: SequenceSlice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = F.silu(self.conv1d(self.in_proj(self.in_norm(x_SBH)), mask)).split(self._read, dim=-1)
        decay, gate, write = self.gates_down_proj(self.gate_norm(x_SBH)).split(self._down, dim=-1)
        q, k = (unit_heads(x, self._key_dim, self._sharers) for x in (q, k))
        v_SBND = v.unflatten(-1, (-1, self._value_dim))
        log_SBND = self._log_kept(self.decay_up_proj(decay))
        o = sample_by_sample(mask, kimi_delta_rule, q * self._key_dim**-0.5, k, v_SBND, log_SBND, self._written(write))
        opened = torch.sigmoid(self.out_gate_up_proj(gate).to(o.dtype)).unflatten(-1, (-1, self._value_dim))
        out: tuple[Tensor, Tensor | None] = self.out_proj((self.out_norm(o) * opened).flatten(-2).to(x_SBH.dtype))
        return out

    def _log_kept(self, step: Tensor) -> Tensor:
        """Return the logarithm of what each channel of a head's keys keeps, [S, B, N, D], in at least fp32: it is summed."""
        wide = torch.promote_types(step.dtype, torch.float32)
        steps: Tensor = F.softplus(step.to(wide) + self.dt_bias.to(wide)).unflatten(-1, (-1, self._key_dim))
        return -torch.exp(self.A_log.to(wide))[:, None] * steps

    def _written(self, write: Tensor) -> Tensor:
        """Return how much this rank's heads write, [S, B, N]."""
        heads = enter_tensor_parallel(write, self._tp, self._sequence_parallel).chunk(self._tp.size, dim=-1)
        return torch.sigmoid(heads[self._tp.index].to(torch.promote_types(write.dtype, torch.float32)))
