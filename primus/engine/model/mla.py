"""Multi-latent attention (arXiv 2405.04434): keys and values of all heads come from one small vector a token.

q = [q_n, rotated q_r] of each head, from x or from a latent of its own
[c, k_r] = W_dkv x,  [k_n, v] = W_ukv norm(c) of each head,  k = [k_n, rotated k_r], and all heads share k_r

Rotated channels are neighbours in pairs. Under sequence parallelism latents are of a slice of the sequence, and are gathered
where they are smallest: before the projections up to heads.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from primus.engine.kernels.attention import same_width
from primus.engine.kernels.linear import linear
from primus.engine.kernels.segments import Mask
from primus.engine.model.linears import RowParallelLinear, enter_tensor_parallel
from primus.engine.model.parameter import Initial, Place, declare
from primus.engine.model.rotary import RotaryTables, rotate
from primus.engine.model.slices import SequenceSlice
from primus.engine.parallel.sharding import Sharding

__all__ = ["LatentAttention", "ReplicatedLinear", "SameWidth"]


class ReplicatedLinear(nn.Module):
    """y = x W^T with all of W on every tensor-parallel rank, for its slice of the sequence if it has one."""

    def __init__(self, place: Place, inputs: int, outputs: int, *, initial: Initial) -> None:
        super().__init__()
        sharding = Sharding(dim=None, sequence_parallel_grad=place.sequence_parallel)
        self.weight = declare(place, (outputs, inputs), sharding, initial)

    def forward(self, x_SBH: Tensor) -> Tensor:
        return linear(x_SBH, self.weight, None)


class LatentAttention(nn.Module):
    """Attention over the sequence; returns the output and its unadded bias."""

    def __init__(
        self,
        place: Place,
        *,
        queries: Mapping[str, nn.Module],
        linear_kv_down_proj: ReplicatedLinear,
        keys_and_values: Mapping[str, nn.Module],
        core_attention: nn.Module,
        linear_proj: RowParallelLinear,
        channels: tuple[int, int, int],
        temperature: float,
    ) -> None:
        """`queries` lead from x to heads one after the other, `keys_and_values` from the latent vector.

        `channels` are those of a head: not rotated, rotated, of values. Scores are multiplied by `temperature`.
        """
        super().__init__()
        for name, module in queries.items():
            self.add_module(name, module)
        self.linear_kv_down_proj = linear_kv_down_proj
        for name, module in keys_and_values.items():
            self.add_module(name, module)
        self.core_attention, self.linear_proj = core_attention, linear_proj
        self._queries, self._keys_and_values = tuple(queries), tuple(keys_and_values)
        self._channels, self._temperature = channels, temperature
        self._tp, self._sequence_parallel = place.tp, place.sequence_parallel

    def forward(
        self, x_SBH: Tensor, tables: RotaryTables | None, mask: Mask, part: SequenceSlice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        plain, rotated, value_channels = self._channels
        q_SBND = self._through(self._queries, x_SBH).unflatten(-1, (-1, plain + rotated))
        latent_SBC, k_r_SBD = self.linear_kv_down_proj(x_SBH).tensor_split((-rotated,), dim=-1)
        kv_SBNC = self._through(self._keys_and_values, latent_SBC).unflatten(-1, (-1, plain + value_channels))
        k_n, value = kv_SBNC.split((plain, value_channels), dim=-1)
        k_r = rotate(enter_tensor_parallel(k_r_SBD, self._tp, self._sequence_parallel), tables, interleaved=True)
        q_n, q_r = q_SBND.split((plain, rotated), dim=-1)
        query = torch.cat((q_n, rotate(q_r, tables, interleaved=True)), dim=-1)
        if self._temperature != 1.0:
            query = query * self._temperature
        key = torch.cat((k_n, k_r.unsqueeze(2).expand(*k_n.shape[:-1], rotated)), dim=-1)
        if part is not None:
            key, value = part.extend(self, key, value)
        output: tuple[Tensor, Tensor | None] = self.linear_proj(self.core_attention(query, key, value, mask))
        return output

    def _through(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        for name in names:
            through: Tensor = self.get_submodule(name)(x)
            x = through
        return x


class SameWidth(nn.Module):
    """Core attention for a `core` that takes keys and values of one width: the narrower ones are widened by zeros."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask) -> Tensor:
        channels, value_channels = q_SBND.shape[-1], v_SBGD.shape[-1]
        q_SBND, k_SBGD, v_SBGD = same_width(q_SBND, k_SBGD, v_SBGD)
        if q_SBND.shape[-1] != channels:
            # The core divides scores by the root of the new width.
            q_SBND = q_SBND * math.sqrt(q_SBND.shape[-1] / channels)
        context: Tensor = self.core(q_SBND, k_SBGD, v_SBGD, mask)
        by_head: Tensor = context.unflatten(-1, (-1, q_SBND.shape[-1]))
        return by_head[..., :value_channels].flatten(-2)
