"""Self-attention with grouped queries: fused projection, head norms, positions, core attention, output projection.

`linear_qkv` has its rows ordered by group: the group's N/G query heads, its key head, its value head. An output gate has N/G
heads more, behind the queries of each group. A rank owns whole groups and their query heads. With fewer groups than ranks the
projection's rows are divided evenly all the same; its output is then gathered, and each rank takes its own query heads and the
key/value head they share with other ranks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from primus.engine.kernels.attention import explicit_attention, fused_attention, plain_attention_form
from primus.engine.kernels.pick import Form
from primus.engine.kernels.position_dropout import PositionDropout
from primus.engine.kernels.segments import Mask, Segments
from primus.engine.kernels.varied_attention import ScoreRule, varied_attention
from primus.engine.model.linears import ColumnParallelLinear, RowParallelLinear
from primus.engine.model.parameter import Place, constant, declare
from primus.engine.model.positioned import Positioned
from primus.engine.model.rotary import RotaryTables
from primus.engine.model.slices import SequenceSlice
from primus.engine.parallel import collectives
from primus.engine.parallel.mesh import Group
from primus.engine.parallel.random import RandomStreams
from primus.engine.parallel.sharding import Sharding

__all__ = ["ExplicitAttention", "FusedAttention", "GatheredHeads", "Heads", "OwnHeads", "SelfAttention", "SinkAttention"]


class Heads(NamedTuple):
    """Query heads by group [S, B, G, N/G, D], key and value heads [S, B, G, D], and what gates the output of query heads."""

    query: Tensor
    key: Tensor
    value: Tensor
    gate: Tensor | None


class SelfAttention(nn.Module):
    """Attention over the sequence; returns the output and its unadded bias."""

    def __init__(
        self,
        *,
        linear_qkv: ColumnParallelLinear,
        own_heads: Callable[[Tensor], Heads],
        q_layernorm: nn.Module | None,
        k_layernorm: nn.Module | None,
        position: Positioned,
        core_attention: nn.Module,
        linear_proj: RowParallelLinear,
    ) -> None:
        super().__init__()
        self.linear_qkv, self.own_heads = linear_qkv, own_heads
        self.q_layernorm, self.k_layernorm = q_layernorm, k_layernorm
        self.position = position
        self.core_attention, self.linear_proj = core_attention, linear_proj

    def forward(
        self, x_SBH: Tensor, tables: RotaryTables | None, mask: Mask, part: SequenceSlice | None = None
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value, gate = self.own_heads(self.linear_qkv(x_SBH))
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        packed = mask if isinstance(mask, Segments) else None
        query, key = self.position(query, key, tables, 0 if part is None else part.first, packed)
        if part is not None:
            key, value = part.extend(self, key, value)
        context = self.core_attention(query.flatten(2, 3), key, value, mask)
        if gate is not None:
            context = context * gate.flatten(2).sigmoid()
        output: tuple[Tensor, Tensor | None] = self.linear_proj(context)
        return output


class FusedAttention(nn.Module):
    """Core attention by fused kernels. `share` tells which of how many equal shares of the rank's heads it is given.

    `plain` is the form of what is causal, without mask, rule and dropout.
    """

    def __init__(
        self, place: Place, *, dropout: float, rule: ScoreRule, share: tuple[int, int] = (0, 1), plain: Form = "portable"
    ) -> None:
        super().__init__()
        self.plain = plain_attention_form(plain)
        self.dropout, self.streams, self.rule, self.share = dropout, place.streams, rule, share

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask, sink_N: Tensor | None = None) -> Tensor:
        if isinstance(mask, Segments):
            return mask.attend(lambda *heads: self(*heads, None, sink_N), q_SBND, k_SBGD, v_SBGD)
        drops = self.training and self.dropout > 0.0
        if sink_N is not None or not self.rule.is_plain:
            dropout = _positions_dropped(self.streams, self.dropout, len(k_SBGD), self.share) if drops else None
            return varied_attention(q_SBND, k_SBGD, v_SBGD, mask, rule=self.rule, sink_N=sink_N, dropout=dropout)
        if not drops:
            is_causal = mask is None
            return self.plain(q_SBND, k_SBGD, v_SBGD) if is_causal else fused_attention(q_SBND, k_SBGD, v_SBGD, mask)
        with self.streams.fork("model-parallel"):
            return fused_attention(q_SBND, k_SBGD, v_SBGD, mask, dropout=self.dropout)


class ExplicitAttention(nn.Module):
    """Core attention by its formula; `layer_scaling` is the layer's number under query-key layer scaling, else 1.

    `share` tells which of how many equal shares of the rank's heads it is given.
    """

    def __init__(
        self,
        place: Place,
        *,
        dropout: float,
        softmax_in_fp32: bool,
        rule: ScoreRule,
        layer_scaling: int = 1,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__()
        self.dropout, self.streams, self.rule, self.share = dropout, place.streams, rule, share
        self.softmax_in_fp32, self.layer_scaling = softmax_in_fp32, layer_scaling

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask, sink_N: Tensor | None = None) -> Tensor:
        if isinstance(mask, Segments):
            return mask.attend(lambda *heads: self(*heads, None, sink_N), q_SBND, k_SBGD, v_SBGD)
        drops = self.training and self.dropout > 0.0
        return explicit_attention(
            q_SBND,
            k_SBGD,
            v_SBGD,
            mask,
            dropout=_positions_dropped(self.streams, self.dropout, len(k_SBGD), self.share) if drops else None,
            softmax_in_fp32=self.softmax_in_fp32,
            layer_scaling=self.layer_scaling,
            rule=self.rule,
            sink_N=sink_N,
        )


class SinkAttention(nn.Module):
    """Core attention with a learned score for each of the rank's heads, zero at first, in at least fp32."""

    def __init__(self, place: Place, heads: int, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        dtype = torch.promote_types(place.dtype, torch.float32)
        self.softmax_offset = declare(place, (heads,), Sharding(dim=0), constant(0.0), dtype=dtype)

    def forward(self, q_SBND: Tensor, k_SBGD: Tensor, v_SBGD: Tensor, mask: Mask) -> Tensor:
        out: Tensor = self.core(q_SBND, k_SBGD, v_SBGD, mask, self.softmax_offset)
        return out


def _positions_dropped(streams: RandomStreams, dropout: float, length: int, share: tuple[int, int]) -> PositionDropout:
    return PositionDropout(streams.number("model-parallel"), dropout, length, share)


class OwnHeads:
    """Splits the projection's output into the heads of the rank's own groups, without a copy."""

    def __init__(self, groups: int, queries_per_group: int, channels: int, *, is_gated: bool = False) -> None:
        self.is_gated = is_gated
        self.shape = (groups, queries_per_group * (1 + is_gated) + 2, channels)

    def __call__(self, qkv_SBC: Tensor) -> Heads:
        return _split(qkv_SBC.unflatten(-1, self.shape), self.is_gated)


class GatheredHeads:
    """For fewer groups than ranks: gathers the projection, takes own query heads and their group's key and value head."""

    def __init__(self, tp: Group, groups: int, queries_per_group: int, channels: int, *, is_gated: bool = False) -> None:
        ranks_per_group = tp.size // groups
        own = queries_per_group // ranks_per_group
        self.tp, self.channels, self.is_gated = tp, channels, is_gated
        wide = queries_per_group * (1 + is_gated)
        self.shape = (groups, wide + 2, channels)
        self.group = tp.index // ranks_per_group
        first = tp.index % ranks_per_group * own
        own_heads = [start + head for start in range(0, wide, queries_per_group) for head in range(first, first + own)]
        self.heads = [*own_heads, wide, wide + 1]

    def __call__(self, qkv_SBC: Tensor) -> Heads:
        whole = collectives.gather_last_dim(qkv_SBC, self.tp, partial_grad=True).unflatten(-1, self.shape)
        return _split(whole[:, :, self.group : self.group + 1, self.heads], self.is_gated)


def _split(heads: Tensor, is_gated: bool) -> Heads:
    query, key, value = _SplitHeads.apply(heads)
    if not is_gated:
        return Heads(query, key, value, None)
    query, gate = query.chunk(2, dim=3)
    return Heads(query, key, value, gate)


class _SplitHeads(torch.autograd.Function):
    """Views of one tensor [S, B, G, N/G + 2, D]; the gradient is written once into one tensor instead of three padded ones."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return heads[:, :, :, :-2], heads[:, :, :, -2], heads[:, :, :, -1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_query: Tensor, d_key: Tensor, d_value: Tensor) -> Tensor:
        S, B, G, queries, D = d_query.shape
        d_heads = d_query.new_empty(S, B, G, queries + 2, D)
        d_heads[:, :, :, :-2] = d_query
        d_heads[:, :, :, -2] = d_key
        d_heads[:, :, :, -1] = d_value
        return d_heads
